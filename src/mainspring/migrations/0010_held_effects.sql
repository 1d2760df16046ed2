-- Held rows are few among what a rule owes: a resume, and the net that looks for those that no pause holds, find them by this.
create index effects_held on mainspring.effects (tenant_id, rule_id) where state = 'pending' and not_before = 'infinity';
