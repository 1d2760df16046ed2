"""The product's numbered SQL. Needs the engine's set first, and the roles of `mainspring.roles`."""
