-- Tenants are walls: every table has row-level security, forced on its owner too.
-- mainspring_app sees one tenant, and none while none is set (on a reused connection the setting is '', hence nullif).
-- The sub-select is evaluated once a statement, not once a row.

grant usage on schema mainspring to mainspring_app, mainspring_system;

do $$
declare
    t       text;
    walled  text;
begin
    for t in select c.relname from pg_class c where c.relnamespace = 'mainspring'::regnamespace and c.relkind = 'r' loop
        if t in ('engine', 'schema_migrations') then
            execute format('grant select on mainspring.%I to mainspring_app, mainspring_system', t);
            continue;
        end if;
        walled := case when t = 'tenants' then 'id' else 'tenant_id' end;
        execute format('alter table mainspring.%I enable row level security', t);
        execute format('alter table mainspring.%I force row level security', t);
        execute format(
            'create policy one_tenant on mainspring.%I to mainspring_app using (%I = (select nullif(current_setting(''mainspring.tenant'', true), '''')::uuid))',
            t, walled);
        execute format('create policy all_tenants on mainspring.%I to mainspring_system using (true)', t);
        execute format('grant select, insert, update, delete on mainspring.%I to mainspring_app, mainspring_system', t);
    end loop;
end
$$;
