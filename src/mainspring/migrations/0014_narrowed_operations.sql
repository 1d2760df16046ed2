-- Decisions on the dead letters of one rule or one agent; null is any. Steps of those are told from others by their payload: a server
-- that does not know them would decide on all letters.
alter table mainspring.operations add column rule_id uuid, add column agent_id uuid;
