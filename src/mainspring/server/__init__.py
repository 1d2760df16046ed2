"""HTTP: takes requests, gives each to one service, and answers JSON or a problem. Decides nothing itself."""
