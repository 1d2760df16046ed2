-- The engine's breakers stand behind the same walls. On a new database 0002 has found them there already.

do $$
begin
    if not exists (select from pg_policies where schemaname = 'mainspring' and tablename = 'breakers') then
        alter table mainspring.breakers enable row level security;
        alter table mainspring.breakers force row level security;
        create policy one_tenant on mainspring.breakers to mainspring_app
            using (tenant_id = (select nullif(current_setting('mainspring.tenant', true), '')::uuid));
        create policy all_tenants on mainspring.breakers to mainspring_system using (true);
        grant select, insert, update, delete on mainspring.breakers to mainspring_app, mainspring_system;
    end if;
end
$$;
