"""The secret stores behind ``${prefix:reference}``, one module each. Each imports its library when used."""
