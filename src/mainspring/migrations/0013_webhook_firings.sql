-- A webhook that is begun counts against its rule's limits like a launch, and is about no agent.
alter table mainspring.firings alter column agent_id drop not null;
alter table mainspring.firings add constraint firings_agent_of_kind check (agent_id is not null or kind = 'webhook');
