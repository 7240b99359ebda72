"""What windows, sessions and joins share: a state that goes back, event time, loads by the clock."""
