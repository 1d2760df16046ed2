"""What operators look at and decide: the desk, `explain`, `verify`. Reads every room's rows; changes them by the rooms' verbs."""
