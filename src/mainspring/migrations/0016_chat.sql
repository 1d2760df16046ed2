-- Channels, their members and topics; messages and the words they are found by; agents' sessions; people's inbox.

create table mainspring.channels (
    tenant_id   uuid not null references mainspring.tenants (id),
    id          uuid not null,
    name        text not null check (name ~ '^[a-z0-9][a-z0-9_-]{0,79}$'),
    purpose     text not null default '' check (length(purpose) <= 1000),
    -- open: everybody of the tenant reads it, and joins by posting; shared: its members alone know of it
    visibility  text not null check (visibility in ('open', 'shared')),
    -- owner: nobody posts but its owner
    post_policy text not null default 'members' check (post_policy in ('members', 'owner')),
    owner_id    uuid,
    board_id    uuid,
    last_seq    bigint not null default 0 check (last_seq >= 0),
    version     bigint not null default 1 check (version > 0),
    created_at  timestamptz not null default clock_timestamp(),
    archived_at timestamptz,
    primary key (tenant_id, id),
    constraint channels_name unique (tenant_id, name),
    constraint channels_board unique (tenant_id, board_id),
    foreign key (tenant_id, owner_id) references mainspring.accounts (tenant_id, id),
    foreign key (tenant_id, board_id) references mainspring.boards (tenant_id, id),
    constraint channels_owner check (post_policy <> 'owner' or owner_id is not null)
) with (fillfactor = 70);

create table mainspring.members (
    tenant_id  uuid not null,
    channel_id uuid not null,
    account_id uuid not null,
    -- subscribed: every settled message is owed to it; otherwise what mentions it
    subscribed boolean not null,
    joined_at  timestamptz not null default clock_timestamp(),
    primary key (tenant_id, channel_id, account_id),
    foreign key (tenant_id, channel_id) references mainspring.channels (tenant_id, id),
    foreign key (tenant_id, account_id) references mainspring.accounts (tenant_id, id)
);
create index members_account on mainspring.members (tenant_id, account_id, channel_id);

create table mainspring.topics (
    tenant_id   uuid not null,
    id          uuid not null,
    channel_id  uuid not null,
    name        text not null check (length(name) between 1 and 200),
    card_id     uuid,
    -- messages of agents since the last one of a person
    hops        integer not null default 0 check (hops >= 0),
    last_seq    bigint not null default 0,
    created_at  timestamptz not null default clock_timestamp(),
    archived_at timestamptz,
    primary key (tenant_id, id),
    foreign key (tenant_id, channel_id) references mainspring.channels (tenant_id, id),
    foreign key (tenant_id, card_id) references mainspring.cards (tenant_id, id),
    constraint topics_card unique (tenant_id, card_id)
) with (fillfactor = 70);
create unique index topics_name on mainspring.topics (tenant_id, channel_id, lower(name));

-- An agent's live connection. Its lease holds every offer that it was made.
create table mainspring.sessions (
    tenant_id      uuid not null,
    id             uuid not null,
    agent_id       uuid not null,
    run_id         uuid,
    -- it takes what is owed in this topic, its run's card's; null: all else that is owed to the agent
    topic_id       uuid,
    state          text not null check (state in ('ready', 'working', 'stopped', 'errored', 'displaced', 'lost')),
    turn           bigint not null default 0 check (turn >= 0),
    settled_turn   bigint not null default 0 check (settled_turn >= 0),
    claim_id       uuid not null,
    lease_until    timestamptz,
    -- what the last row acked in this turn descends from: its posts do, too
    acked_seq      bigint,
    acked_via      uuid[] not null default '{}',
    acked_depth    integer not null default 0,
    acked_trust    text not null default 'member' check (acked_trust in ('stranger', 'forge', 'agent', 'member')),
    acked_turn     bigint,
    acked_at       timestamptz,
    started_at     timestamptz not null default clock_timestamp(),
    seen_at        timestamptz not null default clock_timestamp(),
    ended_at       timestamptz,
    reason         text,
    primary key (tenant_id, id),
    foreign key (tenant_id, agent_id) references mainspring.agents (tenant_id, id),
    foreign key (tenant_id, run_id) references mainspring.runs (tenant_id, id),
    foreign key (tenant_id, topic_id) references mainspring.topics (tenant_id, id),
    constraint sessions_claim unique (tenant_id, claim_id),
    constraint sessions_turn check (settled_turn <= turn),
    constraint sessions_lease check ((state in ('ready', 'working')) = (lease_until is not null)),
    constraint sessions_ended check ((lease_until is null) = (ended_at is not null))
) with (fillfactor = 70);
-- one live session an agent for its inbox, and one a run
create unique index sessions_inbox on mainspring.sessions (tenant_id, agent_id) where lease_until is not null and topic_id is null;
create unique index sessions_run on mainspring.sessions (tenant_id, run_id) where lease_until is not null and run_id is not null;
create index sessions_leased on mainspring.sessions (lease_until) where lease_until is not null;
create index sessions_agent on mainspring.sessions (tenant_id, agent_id, id);

create table mainspring.messages (
    tenant_id   uuid not null,
    id          uuid not null,
    channel_id  uuid not null,
    topic_id    uuid not null,
    channel_seq bigint not null check (channel_seq > 0),
    author_id   uuid not null,
    run_id      uuid,
    session_id  uuid,
    turn        bigint,
    -- [{"type": "text", "text": ...}, {"type": "ask", ...}, {"type": "answer", ...}]
    blocks      jsonb not null,
    mentions    uuid[] not null default '{}',
    -- everyone of the channel: agents, or all
    broadcast   text check (broadcast in ('agents', 'everyone')),
    revision    integer not null default 1 check (revision > 0),
    -- the author's own name for this post: sent again, it is the same; and what was sent
    request_id  text not null check (length(request_id) between 1 and 200),
    sent        bytea not null check (length(sent) = 32),
    cause_seq   bigint,
    via         uuid[] not null default '{}',
    depth       integer not null default 0,
    trust       text not null check (trust in ('stranger', 'forge', 'agent', 'member')),
    hops        integer not null default 0,
    settled_at  timestamptz,
    settled_by  text check (settled_by in ('post', 'turn', 'final', 'lease', 'displaced')),
    posted_at   timestamptz not null default clock_timestamp(),
    edited_at   timestamptz,
    primary key (tenant_id, id),
    constraint messages_seq unique (tenant_id, channel_id, channel_seq),
    constraint messages_request unique (tenant_id, author_id, request_id),
    foreign key (tenant_id, channel_id) references mainspring.channels (tenant_id, id),
    foreign key (tenant_id, topic_id) references mainspring.topics (tenant_id, id),
    foreign key (tenant_id, author_id) references mainspring.accounts (tenant_id, id),
    foreign key (tenant_id, session_id) references mainspring.sessions (tenant_id, id),
    constraint messages_settled check ((settled_at is null) = (settled_by is null)),
    -- I-13: only a session can hold a message back
    constraint messages_held check (settled_at is not null or (session_id is not null and turn is not null))
) with (fillfactor = 80);
create index messages_topic on mainspring.messages (tenant_id, topic_id, channel_seq);
create index messages_unsettled on mainspring.messages (tenant_id, session_id, turn) where settled_at is null;

-- Labels of a kind: the index of words stays an index under row-level security, which keeps text search's own operators from theirs.
create table mainspring.message_words (
    tenant_id  uuid not null,
    word       text not null check (length(word) between 1 and 64),
    message_id uuid not null,
    primary key (tenant_id, word, message_id),
    foreign key (tenant_id, message_id) references mainspring.messages (tenant_id, id)
);
create index message_words_message on mainspring.message_words (tenant_id, message_id);

create table mainspring.pins (
    tenant_id  uuid not null,
    channel_id uuid not null,
    place      integer not null check (place between 1 and 5),
    message_id uuid not null,
    pinned_by  uuid not null,
    pinned_at  timestamptz not null default clock_timestamp(),
    primary key (tenant_id, channel_id, place),
    constraint pins_message unique (tenant_id, channel_id, message_id),
    foreign key (tenant_id, channel_id) references mainspring.channels (tenant_id, id),
    foreign key (tenant_id, message_id) references mainspring.messages (tenant_id, id)
);

-- What waits for a person: messages that mention them.
create table mainspring.inbox_items (
    tenant_id  uuid not null,
    account_id uuid not null,
    id         uuid not null,
    message_id uuid not null,
    created_at timestamptz not null default clock_timestamp(),
    read_at    timestamptz,
    primary key (tenant_id, account_id, id),
    constraint inbox_items_message unique (tenant_id, account_id, message_id),
    foreign key (tenant_id, account_id) references mainspring.accounts (tenant_id, id),
    foreign key (tenant_id, message_id) references mainspring.messages (tenant_id, id)
);
create index inbox_items_unread on mainspring.inbox_items (tenant_id, account_id, id) where read_at is null;

-- A question is a run's, or stands in a message: the first answer to it is a message, too, and mentions who asked.
alter table mainspring.asks
    alter column run_id drop not null,
    alter column claim_id drop not null,
    alter column request_id drop not null,
    add column message_id uuid,
    add column block_id text check (length(block_id) between 1 and 64),
    add foreign key (tenant_id, message_id) references mainspring.messages (tenant_id, id),
    add constraint asks_block unique (tenant_id, message_id, block_id),
    add constraint asks_of check ((run_id is null) <> (message_id is null) and (message_id is null) = (block_id is null)),
    add constraint asks_of_run check (run_id is null or (claim_id is not null and request_id is not null)),
    add constraint asks_of_message check (message_id is null or (not released and expires_at is null));
create index asks_open_of_messages on mainspring.asks (tenant_id, id) where state = 'open' and message_id is not null;

-- What a recipient is owed, topic by topic, in the order of the log.
create index effects_offered on mainspring.effects (tenant_id, recipient_id, topic_id, event_seq, id)
    where family = 'offered' and state in ('pending', 'claimed');
-- of it, what waits for a person to speak in its topic: few, and looked for at every tick
create index effects_unspoken on mainspring.effects (tenant_id, topic_id)
    where family = 'offered' and state = 'pending' and not_before = 'infinity';
-- and what a session holds: its id is the worker's name
create index effects_of_session on mainspring.effects (tenant_id, worker) where family = 'offered' and state = 'claimed';
-- one live wake an agent
create unique index effects_wake on mainspring.effects (tenant_id, recipient_id) where kind = 'wake' and state in ('pending', 'claimed');
-- wakes since the agent last acked anything: each next one waits longer
create index effects_woken on mainspring.effects (tenant_id, recipient_id, created_at) where kind = 'wake';
create index agents_woken on mainspring.agents (tenant_id, id) where wake;

do $$
declare
    t text;
begin
    foreach t in array array['channels', 'members', 'topics', 'sessions', 'messages', 'message_words', 'pins', 'inbox_items'] loop
        execute format('alter table mainspring.%I enable row level security', t);
        execute format('alter table mainspring.%I force row level security', t);
        execute format(
            'create policy one_tenant on mainspring.%I to mainspring_app using (tenant_id = (select nullif(current_setting(''mainspring.tenant'', true), '''')::uuid))', t);
        execute format('create policy all_tenants on mainspring.%I to mainspring_system using (true)', t);
        execute format('grant select, insert, update, delete on mainspring.%I to mainspring_app, mainspring_system', t);
    end loop;
end
$$;
