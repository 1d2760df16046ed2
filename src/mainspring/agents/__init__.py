"""Who works: accounts and their tokens, agents, their runs, and the protocol by which runners do them."""
