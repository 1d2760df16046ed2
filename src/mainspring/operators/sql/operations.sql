-- name: insert_operation
insert into mainspring.operations
    (tenant_id, id, verb, account_id, actor, kind, cause, rule_id, agent_id, new_key, reason, rate_per_second, total)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: lock_operation
-- For a step, or to stop it: whoever stops it waits for the step that is under way, and none comes after.
select o.id
  from mainspring.operations o
 where o.tenant_id = $1 and o.id = $2
   for no key update;

-- name: operations
-- The newest first, each with the step that it waits for.
select o.id, o.verb, o.account_id, o.actor, o.kind, o.cause, o.rule_id, u.name as rule, o.agent_id, a.handle as agent, o.new_key,
       o.reason, o.rate_per_second, o.state, o.total, o.done, o.skipped, o.step, o.after_age, o.after_id, o.created_at, o.ended_at,
       o.ended_by, e.id as step_id, e.state as step_state, e.error as step_error
  from mainspring.operations o
  left join mainspring.effects e on e.tenant_id = o.tenant_id and e.kind = 'operation' and e.key = o.id || ':' || o.step
  left join mainspring.rules u on u.tenant_id = o.tenant_id and u.id = o.rule_id
  left join mainspring.accounts a on a.tenant_id = o.tenant_id and a.id = o.agent_id
 where o.tenant_id = $1 and o.id < $2
 order by o.id desc
 limit $3;

-- name: operation
select o.id, o.verb, o.account_id, o.actor, o.kind, o.cause, o.rule_id, u.name as rule, o.agent_id, a.handle as agent, o.new_key,
       o.reason, o.rate_per_second, o.state, o.total, o.done, o.skipped, o.step, o.after_age, o.after_id, o.created_at, o.ended_at,
       o.ended_by, e.id as step_id, e.state as step_state, e.error as step_error
  from mainspring.operations o
  left join mainspring.effects e on e.tenant_id = o.tenant_id and e.kind = 'operation' and e.key = o.id || ':' || o.step
  left join mainspring.rules u on u.tenant_id = o.tenant_id and u.id = o.rule_id
  left join mainspring.accounts a on a.tenant_id = o.tenant_id and a.id = o.agent_id
 where o.tenant_id = $1 and o.id = $2;

-- name: move_operation
-- Under its lock: how far it has come, and, when nothing is left, its end.
update mainspring.operations
   set done = done + $3, skipped = skipped + $4, after_age = $5, after_id = $6, step = step + 1,
       state = case when $7 then 'done' else state end,
       ended_at = case when $7 then clock_timestamp() end
 where tenant_id = $1 and id = $2 and state = 'running' and step = $8;

-- name: stop_operation
update mainspring.operations
   set state = 'stopped', ended_at = clock_timestamp(), ended_by = $3
 where tenant_id = $1 and id = $2 and state = 'running';
