"""Actions: what people asked to be done with runs and schedules, and what is paused."""
