-- What a recipient is owed stands in lines: what is of one kind, in one topic, in the order of the log. Whoever asks what can be taken
-- goes from the head of one line to the head of the next, and past no row that stands behind one. The kind comes before the topic:
-- during a turn steers alone are asked for, however many deliveries wait.
drop index mainspring.effects_offered;
create index effects_offered on mainspring.effects (tenant_id, recipient_id, kind, topic_id, event_seq, id)
    where family = 'offered' and state in ('pending', 'claimed');
-- which topics sessions of runs read, at this moment
create index sessions_topic on mainspring.sessions (tenant_id, agent_id, topic_id) where lease_until is not null and topic_id is not null;

-- The heads of the lines of one kind that a session may take from: of its run's topic, or, with null, of all topics but those which
-- sessions of runs read. A head that is neither due nor the session's own keeps all that stand behind it.
create function mainspring.lines(tenant uuid, recipient uuid, kind text, topic uuid)
    returns table (topic_id uuid, id uuid, event_seq bigint, holder text, due boolean)
    language sql stable
    as $$
    with recursive heads as (
        (select e.topic_id, e.id, e.event_seq, e.state, e.worker, e.not_before
           from mainspring.effects e
          where $4 is null and e.tenant_id = $1 and e.recipient_id = $2 and e.kind = $3
            and e.family = 'offered' and e.state in ('pending', 'claimed')
          order by e.topic_id, e.event_seq, e.id
          limit 1)
        union all
        select n.*
          from heads h
         cross join lateral (
             select e.topic_id, e.id, e.event_seq, e.state, e.worker, e.not_before
               from mainspring.effects e
              where e.tenant_id = $1 and e.recipient_id = $2 and e.kind = $3 and e.topic_id > h.topic_id
                and e.family = 'offered' and e.state in ('pending', 'claimed')
              order by e.topic_id, e.event_seq, e.id
              limit 1) n
    ), open as (
        select h.*
          from heads h
         where not (h.topic_id = any (array(select s.topic_id
                                              from mainspring.sessions s
                                             where s.tenant_id = $1 and s.agent_id = $2 and s.lease_until is not null
                                               and s.topic_id is not null)))
        union all
        (select e.topic_id, e.id, e.event_seq, e.state, e.worker, e.not_before
           from mainspring.effects e
          where e.tenant_id = $1 and e.recipient_id = $2 and e.kind = $3 and e.topic_id = $4
            and e.family = 'offered' and e.state in ('pending', 'claimed')
          order by e.event_seq, e.id
          limit 1)
    )
    select o.topic_id, o.id, o.event_seq, case when o.state = 'claimed' then o.worker end,
           o.state = 'pending' and o.not_before <= statement_timestamp()
      from open o
    $$;
