"""The planner: asks the connected systems and builds a plan. Changes nothing."""
