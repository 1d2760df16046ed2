-- name: owe
-- A row that stands already is left as it is. With $14 the new ones make their tenants due in the same statement; without,
-- that is left to make_due at the transaction's end, since whoever holds a tenant's due row holds up every drain.
-- Rows come in (tenant, kind, key) order: two drains that meet wait for each other, and never in a ring.
with given as (
    select g.*
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::uuid[], $8::integer[],
                $9::uuid[], $10::uuid[], $11::text[], $12::text[], $13::double precision[])
        as g (tenant_id, id, kind, family, key, event_seq, rule_id, rule_version, recipient_id, topic_id, target, payload,
              delay_seconds)
), owed as (
    insert into mainspring.effects
        (tenant_id, id, kind, family, key, event_seq, rule_id, rule_version, recipient_id, topic_id, target, payload, state,
         not_before)
    select tenant_id, id, kind, family, key, event_seq, rule_id, rule_version, recipient_id, topic_id, target,
           payload::jsonb, 'pending',
           case when delay_seconds = 'infinity' then 'infinity' else clock_timestamp() + delay_seconds * interval '1 second' end
    from given
    order by tenant_id, kind, key
    on conflict do nothing
    returning tenant_id, id, kind, family, not_before
), bumped as (
    insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
    select tenant_id, family, min(not_before), 1 from owed where $14::boolean
    group by tenant_id, family order by tenant_id, family
    on conflict (tenant_id, family) do update
        set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1
)
select id, kind from owed;

-- name: make_due
insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
select e.tenant_id, e.family, min(e.not_before), 1
from unnest($1::uuid[], $2::uuid[]) as g (tenant_id, id)
join mainspring.effects e on e.tenant_id = g.tenant_id and e.id = g.id
where e.state = 'pending'
group by e.tenant_id, e.family
order by e.tenant_id, e.family
on conflict (tenant_id, family) do update
    set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1;

-- name: standing
-- Payloads are compared as jsonb: by what they mean, not by how they were written.
select g.n, e.id, e.state, e.payload = g.payload::jsonb as same
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) with ordinality as g (tenant_id, kind, key, payload, n)
join mainspring.effects e on e.tenant_id = g.tenant_id and e.kind = g.kind and e.key = g.key;

-- name: claim
-- Due tenants first, starting behind the last one served; each gets an even share, so that ten thousand rows of one
-- do not delay the one row of another. Many more tenants are looked at than rows are wanted: those that have only other
-- kinds, or rows that must run alone, would hide the rest from a worker with one free slot. Rows whose lease ran out are
-- found by their own index and come first: a backlog never keeps them, and they are few, since a second crash runs alone.
-- A tenant with a target that is down (few at any time) is looked at target by target, so that what waits there is not walked
-- over: of one that is down nothing but what has waited for $7 seconds, of one whose time is up the earliest row, the probe.
-- Whoever takes a probe holds the breaker, and shuts it again for the length of the lease. What has waited behind a breaker has
-- been deferred since then, though nobody has touched it.
-- Every predicate is repeated in the update: what was true when the row was picked must still be true when it is taken. As a
-- case, since as an or it can be had from the indexes of live rows, and the planner would read all of them for a few.
-- A picked row is locked, and is taken where it lies. One that was written to after this statement began is not seen there, and
-- is left to the next claim.
-- The rows' claim ids share one random start: a random number a row asks the system each time, and costs half an update.
-- The plan is made once a connection, maybe while the tables are empty: wherever rows may be many, one index alone has the order
-- or the whole key that is asked for. So too in raise_due.
with shut as materialized (
    select tenant_id, target, down_since, open_until > statement_timestamp() as is_down,
           open_until > statement_timestamp()
               and down_since <= statement_timestamp() - $7::double precision * interval '1 second' as for_good
    from mainspring.breakers
    where open_until is not null
), due as materialized (
    select d.tenant_id, d.bumps, row_number() over () as place, d.tenant_id in (select tenant_id from shut) as is_shut
    from (
        select tenant_id, bumps
        from mainspring.due_tenants
        where family = 'executed' and next_due <= statement_timestamp()
        order by (tenant_id <= $5), tenant_id
        limit greatest($4, 200)
    ) d
), share as materialized (
    select ceil($4::numeric / greatest(count(*), 1))::integer as size from due
), ready as materialized (
    select e.at, due.place
    from due cross join share
    cross join lateral (
        select r.ctid as at
        from mainspring.effects r
        where r.tenant_id = due.tenant_id and r.state = 'pending' and r.family = 'executed'
          and r.not_before <= statement_timestamp() and r.kind = any($2::text[]) and r.crashes < $6
        order by r.not_before, r.id
        limit share.size
        for update skip locked
    ) e
    where not due.is_shut
    limit $4
), probing as materialized (
    select tenant_id, target
    from mainspring.breakers
    where open_until <= statement_timestamp() and tenant_id in (select tenant_id from due where is_shut)
    for update skip locked
), lanes as materialized (
    select due.tenant_id, due.place, share.size as share, t.target, probing.target is not null as probe, shut.down_since,
           case when shut.target is null then share.size
                when probing.target is not null then 1
                when shut.for_good then share.size
                else 0 end as size,
           case when shut.is_down then statement_timestamp() - $7::double precision * interval '1 second'
                else statement_timestamp() end as before
    from due cross join share
    cross join lateral (
        with recursive lane as (
            (select e.target from mainspring.effects e
             where e.tenant_id = due.tenant_id and e.state = 'pending' and e.family = 'executed'
             order by e.target limit 1)
            union all
            select (select e.target from mainspring.effects e
                    where e.tenant_id = due.tenant_id and e.state = 'pending' and e.family = 'executed' and e.target > lane.target
                    order by e.target limit 1)
            from lane where lane.target is not null
        )
        select lane.target from lane where lane.target is not null
    ) t
    left join shut on shut.tenant_id = due.tenant_id and shut.target = t.target
    left join probing on probing.tenant_id = due.tenant_id and probing.target = t.target
    where due.is_shut
), beside as materialized (
    select e.at, e.place, e.probe, e.down_since
    from (
        select r.at, lanes.place, lanes.probe, lanes.down_since, lanes.share,
               row_number() over (partition by lanes.tenant_id order by r.not_before, r.id) as n
        from lanes
        cross join lateral (
            select r.ctid as at, r.id, r.not_before
            from mainspring.effects r
            where r.tenant_id = lanes.tenant_id and r.target = lanes.target and r.state = 'pending' and r.family = 'executed'
              and r.not_before <= lanes.before and r.kind = any($2::text[]) and r.crashes < $6
            order by r.not_before, r.id
            limit lanes.size
            for update skip locked
        ) r
    ) e
    where e.n <= e.share
), expired as materialized (
    select ctid as at, claim_id, worker, claimed_at
    from mainspring.effects
    where state = 'claimed' and lease_until < statement_timestamp() and family = 'executed'
      and kind = any($2::text[]) and crashes + 1 < $6
    order by lease_until
    limit $4
    for update skip locked
), picked as (
    select at, claim_id as old_claim, worker as old_worker, claimed_at as old_start, true as reclaimed, false as probe,
           null::timestamptz as down_since
    from expired
    union all
    (select at, null, null, null, false, probe, down_since
     from (select at, place, false as probe, null::timestamptz as down_since from ready
           union all
           select at, place, probe, down_since from beside) r
     order by place
     limit $4)
    limit $4
), fresh as materialized (
    select left(gen_random_uuid()::text, 24) as start
), named as (
    select picked.*, (fresh.start || lpad(to_hex(row_number() over ()), 12, '0'))::uuid as claim_id
    from picked cross join fresh
), claimed as (
    update mainspring.effects e
    set state = 'claimed', claim_id = p.claim_id, worker = $1, claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + ($3::double precision[])[array_position($2::text[], e.kind)] * interval '1 second',
        crashes = e.crashes + p.reclaimed::integer,
        deferred_since = case when p.down_since is null then e.deferred_since
                              else coalesce(e.deferred_since, greatest(e.not_before, p.down_since)) end
    from named p
    where e.ctid = p.at
      and case when p.reclaimed then e.state = 'claimed' and e.lease_until < statement_timestamp()
               else e.state = 'pending' and e.not_before <= statement_timestamp() end
    returning e.tenant_id, e.id, e.kind, e.key, e.payload::text as payload, e.event_seq, e.rule_id, e.rule_version, e.target,
              e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.not_before, e.deferred_since, p.reclaimed, p.probe,
              p.old_claim, p.old_worker, p.old_start
), noted as (
    insert into mainspring.effect_attempts (tenant_id, effect_id, claim_id, n, epoch, worker, started_at, ended_at, outcome)
    select c.tenant_id, c.id, c.old_claim,
           1 + (select count(*) from mainspring.effect_attempts a where a.tenant_id = c.tenant_id and a.effect_id = c.id),
           c.epoch, c.old_worker, c.old_start, clock_timestamp(), 'lease_lost'
    from claimed c
    where c.reclaimed
    on conflict do nothing
), probed as (
    update mainspring.breakers b
    set open_until = clock_timestamp() + ($3::double precision[])[array_position($2::text[], c.kind)] * interval '1 second',
        changed_at = clock_timestamp()
    from claimed c
    where c.probe and b.tenant_id = c.tenant_id and b.target = c.target
)
select due.tenant_id as due_tenant, due.bumps, share.size as share, c.tenant_id, c.id, c.kind, c.key, c.payload, c.event_seq,
       c.rule_id, c.rule_version, c.target, c.attempts, c.crashes, c.deferrals, c.epoch, c.claim_id, c.reclaimed, c.probe,
       b.target is not null as doubted,
       case when b.open_until is not null and not c.probe
            then greatest(extract(epoch from b.open_until - statement_timestamp()), 0) end::double precision as down_seconds,
       coalesce(extract(epoch from statement_timestamp() - c.deferred_since), 0)::double precision as deferred_seconds,
       greatest(extract(epoch from clock_timestamp() - c.not_before), 0)::double precision as waited_seconds
from share
left join (due full join claimed c on c.tenant_id = due.tenant_id) on true
left join mainspring.breakers b on b.tenant_id = c.tenant_id and b.target = c.target
order by c.not_before, c.id;

-- name: claim_alone
-- One row that has ended its workers at least twice, counting the present end: it runs with nothing else in flight.
with picked as materialized (
    (select r.ctid as at, null::uuid as old_claim, null::text as old_worker, null::timestamptz as old_start,
            false as reclaimed
     from mainspring.effects r
     where r.state = 'pending' and r.family = 'executed' and r.not_before <= statement_timestamp()
       and r.kind = any($2::text[]) and r.crashes >= $4
       and not exists (select from mainspring.breakers b
                       where b.tenant_id = r.tenant_id and b.target = r.target and b.open_until > statement_timestamp()
                         and not (b.down_since <= statement_timestamp() - $5::double precision * interval '1 second'
                                  and r.not_before <= statement_timestamp() - $5::double precision * interval '1 second'))
     order by r.not_before
     limit 1
     for update of r skip locked)
), expired as materialized (
    (select ctid, claim_id, worker, claimed_at, true
     from mainspring.effects
     where state = 'claimed' and lease_until < statement_timestamp() and family = 'executed'
       and kind = any($2::text[]) and crashes + 1 >= $4
     order by lease_until
     limit 1
     for update skip locked)
), one as (
    select * from picked union all select * from expired limit 1
), claimed as (
    update mainspring.effects e
    set state = 'claimed', claim_id = gen_random_uuid(), worker = $1, claimed_at = clock_timestamp(),
        lease_until = clock_timestamp() + ($3::double precision[])[array_position($2::text[], e.kind)] * interval '1 second',
        crashes = e.crashes + p.reclaimed::integer,
        deferred_since = coalesce(e.deferred_since,
                                  (select greatest(e.not_before, b.down_since) from mainspring.breakers b
                                   where b.tenant_id = e.tenant_id and b.target = e.target and b.open_until is not null))
    from one p
    where e.ctid = p.at
      and case when p.reclaimed then e.state = 'claimed' and e.lease_until < statement_timestamp()
               else e.state = 'pending' and e.not_before <= statement_timestamp() end
    returning e.tenant_id, e.id, e.kind, e.key, e.payload::text as payload, e.event_seq, e.rule_id, e.rule_version, e.target,
              e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.not_before, e.deferred_since, p.reclaimed, p.old_claim,
              p.old_worker, p.old_start
), noted as (
    insert into mainspring.effect_attempts (tenant_id, effect_id, claim_id, n, epoch, worker, started_at, ended_at, outcome)
    select c.tenant_id, c.id, c.old_claim,
           1 + (select count(*) from mainspring.effect_attempts a where a.tenant_id = c.tenant_id and a.effect_id = c.id),
           c.epoch, c.old_worker, c.old_start, clock_timestamp(), 'lease_lost'
    from claimed c
    where c.reclaimed
    on conflict do nothing
), probed as (
    update mainspring.breakers b
    set open_until = clock_timestamp() + ($3::double precision[])[array_position($2::text[], c.kind)] * interval '1 second',
        changed_at = clock_timestamp()
    from claimed c
    where not c.reclaimed and b.tenant_id = c.tenant_id and b.target = c.target and b.open_until <= statement_timestamp()
    returning b.target
)
select c.tenant_id, c.id, c.kind, c.key, c.payload, c.event_seq, c.rule_id, c.rule_version, c.target, c.attempts, c.crashes,
       c.deferrals, c.epoch, c.claim_id, c.reclaimed, p.target is not null as probe, b.target is not null as doubted,
       case when b.open_until is not null and p.target is null
            then greatest(extract(epoch from b.open_until - statement_timestamp()), 0) end::double precision as down_seconds,
       coalesce(extract(epoch from statement_timestamp() - c.deferred_since), 0)::double precision as deferred_seconds,
       greatest(extract(epoch from clock_timestamp() - c.not_before), 0)::double precision as waited_seconds
from claimed c
left join mainspring.breakers b on b.tenant_id = c.tenant_id and b.target = c.target
left join probed p on true;

-- name: raise_due
-- Raised only while bumps is what the claim read: an owe that came between has bumped, and one that comes later lowers it
-- again. A row that an owe holds is skipped: staying early is allowed. In a tenant with a target that is down, target by target:
-- what waits there is due when that is tried next, but for what has waited for $3 seconds, which is due now.
with seen as (
    select * from unnest($1::uuid[], $2::bigint[]) as s (tenant_id, bumps)
), held as materialized (
    select d.tenant_id, d.bumps
    from (select * from seen order by tenant_id) s
    cross join lateral (
        select r.tenant_id, r.bumps
        from mainspring.due_tenants r
        where r.tenant_id = s.tenant_id and r.family = 'executed' and r.bumps = s.bumps
        for update skip locked
    ) d
)
update mainspring.due_tenants d
set next_due = coalesce(
    case when exists (select from mainspring.breakers b where b.tenant_id = d.tenant_id and b.open_until is not null)
    then (select min(case when b.down_since <= statement_timestamp() - $3::double precision * interval '1 second'
                           and f.not_before <= statement_timestamp() - $3::double precision * interval '1 second'
                          then f.not_before
                          else greatest(f.not_before, b.open_until) end)
          from (
              with recursive lane as (
                  (select e.target from mainspring.effects e
                   where e.tenant_id = d.tenant_id and e.state = 'pending' and e.family = 'executed'
                   order by e.target limit 1)
                  union all
                  select (select e.target from mainspring.effects e
                          where e.tenant_id = d.tenant_id and e.state = 'pending' and e.family = 'executed'
                            and e.target > lane.target
                          order by e.target limit 1)
                  from lane where lane.target is not null
              )
              select lane.target from lane where lane.target is not null
          ) t
          cross join lateral (
              select e.not_before from mainspring.effects e
              where e.tenant_id = d.tenant_id and e.target = t.target and e.state = 'pending' and e.family = 'executed'
              order by e.not_before limit 1
          ) f
          left join mainspring.breakers b on b.tenant_id = d.tenant_id and b.target = t.target)
    else (select e.not_before from mainspring.effects e
          where e.tenant_id = d.tenant_id and e.state = 'pending' and e.family = 'executed'
          order by e.not_before limit 1) end,
    'infinity')
from held h
where d.tenant_id = h.tenant_id and d.family = 'executed' and d.bumps = h.bumps;

-- name: renew
-- Skipping locked rows: whoever holds one is settling or reclaiming it, and waiting for him would hold up all the others.
-- Here and in settle each row of a batch is looked up by its key, in the order of ids, whatever the planner thinks of how many
-- are claimed: it would take them for none, and read all of them, or all there is, once for every row. For the same reason
-- a claimed row is known by its lease (a CHECK holds the two together): `state = 'claimed'` has an index of its own.
with given as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::double precision[])
        as g (tenant_id, id, claim_id, lease_seconds)
), held as materialized (
    select e.tenant_id, e.id, g.lease_seconds
    from (select * from given order by id) g
    cross join lateral (
        select r.tenant_id, r.id
        from mainspring.effects r
        where r.tenant_id = g.tenant_id and r.id = g.id and r.claim_id = g.claim_id and r.lease_until is not null
        for update skip locked
    ) e
), renewed as (
    update mainspring.effects e
    set lease_until = clock_timestamp() + h.lease_seconds * interval '1 second'
    from held h
    where e.tenant_id = h.tenant_id and e.id = h.id
    returning e.id
)
select g.id
from given g
where 0 = (
    select count(*) from mainspring.effects e
    where e.tenant_id = g.tenant_id and e.id = g.id and e.claim_id = g.claim_id and e.lease_until is not null);

-- name: settle
-- The fence: a row is written only while its claim is the one that was given. Rows that go back to pending make their
-- tenant due again, unless they are held; a cancelled one is dropped instead.
with given as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::integer[], $6::text[], $7::text[],
                         $8::double precision[], $9::boolean[], $10::boolean[])
        as g (tenant_id, id, claim_id, state, attempts, outcome, error, delay_seconds, deferred, plain)
), held as materialized (
    select e.tenant_id, e.id, g.claim_id, e.worker, e.claimed_at, g.attempts, g.outcome, g.error, g.delay_seconds,
           g.deferred, g.plain,
           case when g.state = 'pending' and e.cancel_requested then 'dropped' else g.state end as state,
           g.state = 'pending' and e.cancel_requested as cancelled
    from (select * from given order by id) g
    cross join lateral (
        select r.tenant_id, r.id, r.worker, r.claimed_at, r.cancel_requested
        from mainspring.effects r
        where r.tenant_id = g.tenant_id and r.id = g.id and r.claim_id = g.claim_id and r.lease_until is not null
        for update
    ) e
), settled as (
    update mainspring.effects e
    set state = h.state,
        attempts = h.attempts,
        outcome = case when h.cancelled then 'dropped(cancelled)' else h.outcome end,
        error = h.error,
        claim_id = null,
        lease_until = null,
        not_before = case when h.state <> 'pending' then e.not_before
                          when h.delay_seconds = 'infinity' then 'infinity'
                          else clock_timestamp() + h.delay_seconds * interval '1 second' end,
        deferrals = e.deferrals + h.deferred::integer,
        deferred_since = case when h.deferred then coalesce(e.deferred_since, clock_timestamp()) end,
        settled_at = case when h.state <> 'pending' then clock_timestamp() end
    from held h
    where e.tenant_id = h.tenant_id and e.id = h.id
    returning e.tenant_id, e.id, e.family, e.epoch, e.state, e.not_before
), noted as (
    insert into mainspring.effect_attempts
        (tenant_id, effect_id, claim_id, n, epoch, worker, started_at, ended_at, outcome, error)
    select h.tenant_id, h.id, h.claim_id,
           1 + (select count(*) from mainspring.effect_attempts a where a.tenant_id = h.tenant_id and a.effect_id = h.id),
           s.epoch, h.worker, h.claimed_at, clock_timestamp(), h.outcome, h.error
    from held h
    join settled s on s.tenant_id = h.tenant_id and s.id = h.id
    where not h.plain
    on conflict do nothing
), bumped as (
    insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
    select tenant_id, family, min(not_before), 1 from settled where state = 'pending' and not_before < 'infinity'
    group by tenant_id, family order by tenant_id, family
    on conflict (tenant_id, family) do update
        set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1
)
select id from settled;

-- name: settle_done
-- The same for a batch in which all simply succeeded the first time, which is nearly every one: no row to note, no tenant
-- to make due. A locked row is written where it lies, and one that was written to after this statement began, by a renewal, is
-- not seen there: what is not returned is left to settle, which tells that from a claim that is lost.
with held as materialized (
    select e.at
    from (select * from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as g (tenant_id, id, claim_id) order by id) g
    cross join lateral (
        select r.ctid as at
        from mainspring.effects r
        where r.tenant_id = g.tenant_id and r.id = g.id and r.claim_id = g.claim_id and r.lease_until is not null
        for update
    ) e
)
update mainspring.effects e
set state = 'done', outcome = 'done', error = null, claim_id = null, lease_until = null, deferred_since = null,
    settled_at = clock_timestamp()
from held h
where e.ctid = h.at
returning e.id;

-- name: cancel
update mainspring.effects
set state = case state when 'pending' then 'dropped' else state end,
    outcome = case state when 'pending' then 'dropped(cancelled)' else outcome end,
    settled_at = case state when 'pending' then clock_timestamp() end,
    cancel_requested = true
where tenant_id = $1 and id = $2 and state in ('pending', 'claimed')
returning state;

-- name: state
select state from mainspring.effects where tenant_id = $1 and id = $2;

-- name: replay
-- Whatever becomes of their keys, they are one statement, and locked in one order. They are made due at the transaction's end.
-- When a row was settled ($4) names its death: of one that has died anew since it was read, nothing that was decided holds.
with held as materialized (
    select e.id, g.new_key
    from mainspring.effects e
    join unnest($2::uuid[], $3::boolean[], $4::timestamptz[]) as g (id, new_key, settled_at) on g.id = e.id
    where e.tenant_id = $1 and e.state = 'dead' and e.settled_at = g.settled_at
    order by e.id
    for update of e
), replayed as (
    update mainspring.effects e
    set state = 'pending', attempts = 0, crashes = 0, deferrals = 0, deferred_since = null, epoch = e.epoch + held.new_key::integer,
        not_before = clock_timestamp(), cancel_requested = false, outcome = null, error = null, settled_at = null
    from held
    where e.tenant_id = $1 and e.id = held.id
    returning e.id
)
select id from replayed order by id;

-- name: discard
with held as materialized (
    select id from mainspring.effects
    where tenant_id = $1 and id = any($2::uuid[]) and state = 'dead'
    order by id
    for update
)
update mainspring.effects e
set state = 'discarded', outcome = 'discarded(' || $3::text || ')', settled_at = clock_timestamp()
from held
where e.tenant_id = $1 and e.id = held.id
returning e.id;

-- name: effects_by_id
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from mainspring.effects e
where e.tenant_id = $1 and e.id = any($2::uuid[])
order by e.id;

-- name: effects
-- Along the primary key. What an index of its own can drive has a statement of its own, below: `$n is null or ...` keeps a
-- cached plan from using any.
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from mainspring.effects e
where e.tenant_id = $1 and e.id > $2
  and ($4::text is null or e.kind = $4)
  and ($5::text is null or e.state = $5)
order by e.id
limit $3;

-- name: effects_of_event
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from mainspring.effects e
where e.tenant_id = $1 and e.event_seq = $6
  and ($2::uuid is null or e.id > $2)
  and ($4::text is null or e.kind = $4)
  and ($5::text is null or e.state = $5)
order by e.id
limit $3;

-- name: effects_pending
-- The state is a constant, so that the index of such rows alone serves. Materialized, since the order and the limit would lead
-- the planner along the primary key, past all that is over.
with those as materialized (
    select e.id
    from mainspring.effects e
    where e.tenant_id = $1 and e.state = 'pending'
      and ($2::uuid is null or e.id > $2)
      and ($4::text is null or e.kind = $4)
), picked as (
    select id from those order by id limit $3
)
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from picked
join mainspring.effects e on e.tenant_id = $1 and e.id = picked.id
order by e.id;

-- name: effects_claimed
with those as materialized (
    select e.id
    from mainspring.effects e
    where e.tenant_id = $1 and e.state = 'claimed'
      and ($2::uuid is null or e.id > $2)
      and ($4::text is null or e.kind = $4)
), picked as (
    select id from those order by id limit $3
)
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from picked
join mainspring.effects e on e.tenant_id = $1 and e.id = picked.id
order by e.id;

-- name: effects_dead
with those as materialized (
    select e.id
    from mainspring.effects e
    where e.tenant_id = $1 and e.state = 'dead'
      and ($2::uuid is null or e.id > $2)
      and ($4::text is null or e.kind = $4)
), picked as (
    select id from those order by id limit $3
)
select e.tenant_id, e.id, e.kind, e.family, e.key, e.event_seq, e.rule_id, e.rule_version, e.target, e.payload::text as payload,
       e.state, e.attempts, e.crashes, e.deferrals, e.epoch, e.claim_id, e.worker, e.lease_until, e.not_before,
       e.cancel_requested, e.outcome, e.error, e.created_at, e.settled_at
from picked
join mainspring.effects e on e.tenant_id = $1 and e.id = picked.id
order by e.id;

-- name: attempts
select n, epoch, claim_id, worker, started_at, ended_at, outcome, error
from mainspring.effect_attempts
where tenant_id = $1 and effect_id = $2
order by n, started_at;

-- name: tried
-- Counted one by one along the key of attempts: however many there are of others.
select e.id, n.attempts
from mainspring.effects e
cross join lateral (
    select count(*)::integer as attempts
    from mainspring.effect_attempts a
    where a.tenant_id = e.tenant_id and a.effect_id = e.id and a.epoch = e.epoch
) n
where e.tenant_id = $1 and e.id = any($2::uuid[]) and n.attempts > 0;

-- name: rebuild_due
-- The net under due_tenants: an entry that is late, or missing, would hide rows for ever.
with real as (
    select e.tenant_id, e.family, min(greatest(e.not_before, b.open_until)) as next_due
    from mainspring.effects e
    left join mainspring.breakers b on b.tenant_id = e.tenant_id and b.target = e.target
    where e.state = 'pending' and e.not_before < 'infinity'
    group by e.tenant_id, e.family
), late as (
    select r.tenant_id, r.family, r.next_due
    from real r
    left join mainspring.due_tenants d on d.tenant_id = r.tenant_id and d.family = r.family
    where d.next_due is null or d.next_due > r.next_due
    order by r.tenant_id, r.family
)
insert into mainspring.due_tenants as d (tenant_id, family, next_due, bumps)
select tenant_id, family, next_due, 1 from late
on conflict (tenant_id, family) do update
    set next_due = least(d.next_due, excluded.next_due), bumps = d.bumps + 1;

-- name: trim
with old as (
    select tenant_id, id
    from mainspring.effects
    where state in ('done', 'dropped', 'discarded') and settled_at < statement_timestamp() - $1::double precision * interval '1 second'
    order by settled_at
    limit $2
    for update skip locked
)
delete from mainspring.effects e
using old
where e.tenant_id = old.tenant_id and e.id = old.id;
