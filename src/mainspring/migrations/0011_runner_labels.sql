-- What a runner has, and what a run needs of the one that takes it: a run goes to a runner that has all of its labels.
alter table mainspring.runners
    add column labels text[] not null default '{}',
    -- when it said that it goes; one that does not is missed after a lease
    add column left_at timestamptz;

-- Runs that need the same stand in one lane, one behind the other: whoever may not take the first may take none of them. A text, since
-- no index walks an array behind the walls.
create function mainspring.lane(labels text[]) returns text
    language sql immutable strict parallel safe
    return array_to_string(labels, e'\n');
alter table mainspring.runs
    add column runner_labels text[] not null default '{}',
    add column lane text generated always as (mainspring.lane(runner_labels)) stored;
drop index mainspring.runs_queued;
create index runs_queued on mainspring.runs (tenant_id, agent_id, lane, not_before, id) where state = 'queued';

-- The lanes of an agent's queued runs that a runner with these labels may take from: one look at the index for each lane there is.
create function mainspring.lanes(tenant uuid, agent uuid, labels text[]) returns setof text
    language sql stable
    as $$
    with recursive walked as (
        select (select r.lane from mainspring.runs r
                 where r.tenant_id = $1 and r.agent_id = $2 and r.state = 'queued'
                 order by r.lane limit 1) as lane
        union all
        select (select r.lane from mainspring.runs r
                 where r.tenant_id = $1 and r.agent_id = $2 and r.state = 'queued' and r.lane > walked.lane
                 order by r.lane limit 1)
          from walked where walked.lane is not null
    )
    select lane from walked where string_to_array(lane, e'\n') <@ $3
    $$;
