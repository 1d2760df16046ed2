-- When a rule last fired on a card, and whether it has launched a later launch there: asked under the rule's lock, and without this
-- index answered by reading all that the rule has fired. Only firings are here, which are forgotten when no limit counts them.
create index firings_card on mainspring.firings (tenant_id, rule_id, card_id, fired_at) where rule_id is not null;
