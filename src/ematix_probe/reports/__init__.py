"""Reports in files and as text: JSON, JUnit's XML, HTML, and what the command line prints."""
