"""Actions on runs and schedules: who may ask for what, and which process carries it out."""
