"""What users import to test their pipelines, and the contract suites that certify a backend."""
