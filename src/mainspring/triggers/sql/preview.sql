-- name: previewed_rules
select r.id, r.paused_because, r.waived_seq from mainspring.rules r where r.tenant_id = $1 and r.id = any($2::uuid[]);

-- name: agent_ready
-- Whether an agent's run would be taken: it is not paused, and a runner that has it, and these labels, was heard of lately.
select a.paused,
       exists (select from mainspring.runners w
                where w.tenant_id = a.tenant_id and a.id = any(w.agents) and not w.draining and $4::text[] <@ w.labels
                  and w.last_seen_at > statement_timestamp() - make_interval(secs => $3::double precision)) as served
from mainspring.agents a
where a.tenant_id = $1 and a.id = $2;

-- name: database_moment
select clock_timestamp();
