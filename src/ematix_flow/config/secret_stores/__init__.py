"""Secret stores behind ``${prefix:reference}``: a module each, whose library is imported when it is asked."""
