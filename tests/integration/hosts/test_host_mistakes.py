"""The known mistakes with hosts and their table, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/integration/hosts"
REGISTRY, GUARDS, FAULTS, OUTAGES, HOSTS, TLS, FUZZ = (
    f"{HERE}/test_{name}.py"
    for name in ("registry", "host_guards", "host_faults", "host_outages", "hosts", "host_tls", "host_fuzz")
)

RESIDENTS = f"{HERE}/test_residents.py"
DOOR = f"{HERE}/test_host_door.py"
RESOURCES = f"{HERE}/test_host_resources.py"

TABLE = [
    Mistake(
        "only its host may end a resident",
        replaced("resident-newer-fence", "> control.fence", "> control.fence + 1000"),
        f"{RESIDENTS}::test_one_that_is_disowned_finishes_what_it_has_begun",
    ),
    Mistake(
        "a resident goes on after the end of the lease that its host holds",
        replaced("resident-trusts-hosts-lease", "control.trusted_until", "None"),
        f"{RESIDENTS}::test_one_takes_no_step_after_the_end_of_the_lease_that_its_host_holds",
    ),
    Mistake(
        "a worker's runs are trusted for longer than its process",
        replaced(
            "process-lease-trusted",
            "partial(_earlier, trusted_until, resources.trusted_until)",
            "trusted_until",
        ),
        f"{RESIDENTS}::test_one_takes_no_step_after_the_end_of_the_lease_that_its_host_holds",
    ),
    Mistake(
        "only its host may end an agent",
        replaced("agent-ends-with-lease", "lambda: copy.hold.until", "None"),
        f"{OUTAGES}::test_no_message_is_handled_by_two_copies_of_an_agent[host cut off]",
    ),
    Mistake(
        "nobody ends agents that are frozen with their zygote",
        replaced("frozen-agents-end", "(hosts.ttl_seconds - hosts.trust_seconds) / 2", "None"),
        f"{OUTAGES}::test_no_message_is_handled_by_two_copies_of_an_agent[all frozen]",
    ),
    Mistake(
        "a lease is trusted from the moment of the answer",
        replaced("trust-window", "requested_at", "boot_time()"),
        f"{GUARDS}::test_a_lease_is_trusted_from_the_moment_when_its_renewal_was_asked",
    ),
    Mistake(
        "the leases of agents are renewed on the host's own loop",
        instead(
            "renewal-own-thread",
            "asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()\nwhole = await self._renew_all(redis)",
        ),
        f"{GUARDS}::test_renewals_go_on_while_the_event_loop_is_busy",
    ),
    Mistake(
        "the zygote is sent the new ends of leases by the host's own loop",
        replaced(
            "renewals-reach-zygote", "self.processes.keep()", "self._keeper._call_loop(self.processes.keep)"
        ),
        f"{GUARDS}::test_renewals_go_on_while_the_event_loop_is_busy",
    ),
    Mistake(
        "a repeated create of an agent that waits for its lease waits for the next renewal",
        removed("repeated-grant-renews"),
        f"{GUARDS}::test_a_repeated_create_starts_an_agent_that_waits_for_its_lease",
    ),
    Mistake(
        "a repeated create waits for ever for a lease that has ended again",
        replaced("repeated-create-ends-with-lease", "boot_time() >= copy.hold.until", "False"),
        f"{GUARDS}::test_a_repeated_create_does_not_wait_for_a_lease_that_has_ended_again",
    ),
    Mistake(
        "a resident is shown as running though its host is gone",
        replaced("dead-host-shown", "ended and", "False and"),
        "tests/integration/hosts/test_host_commands.py::test_a_resident_whose_host_died_waits_for_another_and_ask_says_so",
    ),
    Mistake(
        "the zygote is not told of renewals",
        removed("renewals-reach-zygote"),
        f"{GUARDS}::test_an_agent_that_ended_with_its_lease_is_started_again_by_the_next_renewal",
    ),
    Mistake(
        "a call from before the last placing is served",
        removed("grant-seen-fence"),
        f"{REGISTRY}::test_a_call_from_before_the_last_placing_is_refused",
    ),
    Mistake(
        "a second host gets an agent that lives",
        removed("grant-not-while-held"),
        f"{REGISTRY}::test_no_second_host_gets_an_agent_that_lives",
    ),
    Mistake(
        "a host gets what nobody wants",
        removed("grant-wanted-only"),
        f"{REGISTRY}::test_what_nobody_wants_is_not_granted",
    ),
    Mistake(
        "a call that is repeated is another call",
        replaced("grant-repeat-accepted", "again and live", "false"),
        f"{REGISTRY}::test_a_call_that_is_repeated_is_the_same_call",
    ),
    Mistake(
        "any call to the host that has an agent is a repeated one",
        replaced("grant-repeat-same-host", "(seen == '' or fence == tonumber(seen) + 1)", "true"),
        f"{REGISTRY}::test_a_late_call_is_not_the_one_that_its_host_has_served",
    ),
    Mistake(
        "two processes of one name are one host",
        replaced("grant-repeat-same-host", "have[4] == address and ", ""),
        f"{REGISTRY}::test_another_process_of_the_same_name_is_another_host",
    ),
    Mistake(
        "the old host still has what was granted to another",
        removed("grant-leaves-old-host"),
        f"{REGISTRY}::test_an_agent_is_on_one_host_even_if_nobody_took_it_from_the_old_one",
    ),
    Mistake(
        "a new placing has the old fence",
        removed("grant-raises-fence"),
        f"{REGISTRY}::test_one_that_moves_is_for_the_next_host",
    ),
    Mistake(
        "any host renews any lease",
        replaced("agent-renew-fence", "have[1] == host and ", ""),
        f"{REGISTRY}::test_only_its_host_can_say_that_an_agent_ended",
    ),
    Mistake(
        "a lease is renewed under an old fence",
        replaced("agent-renew-fence", "and have[2] == ARGV[i + 1] ", ""),
        f"{REGISTRY}::test_only_its_host_can_say_that_an_agent_ended",
    ),
    Mistake(
        "a renewal keeps what nobody wants",
        replaced("agent-renew-unwanted", "have[3] == '1' and 'kept' or 'unwanted'", "'kept'"),
        f"{REGISTRY}::test_an_agent_that_is_stopped_is_not_found_from_that_moment_on",
    ),
    Mistake(
        "what expired is not found again",
        removed("agent-renew-location"),
        f"{REGISTRY}::test_what_expired_but_went_to_nobody_is_there_again",
    ),
    Mistake(
        "a renewal has one found that is being stopped",
        replaced("agent-renew-location", "have[4] == 'running'", "true"),
        f"{REGISTRY}::test_an_agent_that_is_stopped_is_not_found_from_that_moment_on",
    ),
    Mistake(
        "a redis that went back in time is believed",
        replaced("agent-renew-forgotten", "or tonumber(have[2]) < tonumber(ARGV[i + 1]) ", ""),
        f"{REGISTRY}::test_a_redis_that_went_back_in_time_is_told_again",
    ),
    Mistake(
        "any host says that an agent runs",
        removed("agent-started-fence"),
        f"{REGISTRY}::test_only_its_host_can_say_that_an_agent_ended",
    ),
    Mistake(
        "an agent runs that was stopped while it started",
        removed("agent-started-unwanted"),
        f"{REGISTRY}::test_an_agent_stopped_while_it_starts_does_not_run",
    ),
    Mistake(
        "any host says that an agent ended",
        removed("agent-release-fence"),
        f"{REGISTRY}::test_only_its_host_can_say_that_an_agent_ended",
    ),
    Mistake(
        "a crashed agent is placed again",
        removed("agent-release-lease"),
        f"{REGISTRY}::test_a_crashed_agent_stays_visible_and_is_started_by_nobody",
    ),
    Mistake(
        "one that restarts is found",
        removed("agent-release-location"),
        f"{REGISTRY}::test_one_that_restarts_is_still_its_hosts",
    ),
    Mistake(
        "what is wanted twice begins again",
        removed("want-known-agent"),
        f"{REGISTRY}::test_what_is_wanted_twice_is_one_agent",
    ),
    Mistake(
        "one that is being stopped is placed beside itself",
        replaced("want-stopping-agent", "then", "and false then"),
        f"{REGISTRY}::test_what_is_being_stopped_can_be_wanted_again_when_it_has_ended",
    ),
    Mistake(
        "what is wanted again is forgotten with what it was",
        removed("want-persists-record"),
        f"{REGISTRY}::test_what_is_wanted_again_is_kept_for_ever",
    ),
    Mistake(
        "one that is stopped is found until it has ended",
        removed("unwanted-agent-location"),
        f"{REGISTRY}::test_an_agent_that_is_stopped_is_not_found_from_that_moment_on",
    ),
    Mistake(
        "what is reclaimed goes to everybody",
        removed("agent-reclaim-lease"),
        f"{REGISTRY}::test_a_dead_hosts_agent_is_taken_by_one_and_its_copy_is_refused",
    ),
    Mistake(
        "what is reclaimed has the old fence",
        removed("agent-reclaim-raises-fence"),
        f"{REGISTRY}::test_a_dead_hosts_agent_is_taken_by_one_and_its_copy_is_refused",
    ),
    Mistake(
        "what is reclaimed stays on its dead host",
        removed("agent-reclaim-leaves-host"),
        f"{REGISTRY}::test_a_dead_hosts_agent_is_taken_by_one_and_its_copy_is_refused",
    ),
    Mistake(
        "one that was to be stopped is placed",
        replaced("agent-reclaim-wanted", "or have[3] ~= '1' ", ""),
        f"{REGISTRY}::test_one_to_be_stopped_whose_host_is_gone_is_stopped",
    ),
]

HOST = [
    Mistake(
        "a full host is granted an agent",
        replaced(
            "full-host-refuses",
            "agent.agent_id not in self.copies and len(self.copies) >= self.settings.max_processes",
            "False",
        ),
        f"{GUARDS}::test_a_full_host_gives_back_nothing_because_it_takes_nothing",
    ),
    Mistake(
        "a host that leaves is granted an agent",
        replaced("draining-host-refuses", "self.draining", "False"),
        f"{GUARDS}::test_a_host_that_leaves_takes_nothing_more",
    ),
    Mistake(
        "a host that leaves starts what was granted just before",
        replaced("draining-host-returns-grant", "self.draining", "False"),
        f"{GUARDS}::test_what_is_granted_to_a_host_that_begins_to_leave_is_given_back",
    ),
    Mistake(
        "several things happen to an agent at once",
        instead("agent-lock", "yield"),
        f"{GUARDS}::test_whoever_waits_for_its_turn_gets_it_before_those_who_come_later",
    ),
    Mistake(
        "a lock is thrown away while somebody is woken up for it",
        instead(
            "agent-lock",
            "async with turn:\n    yield\nif not turn.locked():\n    self._turns.pop(agent_id, None)",
        ),
        f"{GUARDS}::test_whoever_waits_for_its_turn_gets_it_before_those_who_come_later",
    ),
    Mistake(
        "the lock of every agent that ever was is kept",
        replaced("agent-locks-weak", "WeakValueDictionary()", "{}"),
        f"{GUARDS}::test_a_turn_that_fails_leaves_nothing_behind",
    ),
    Mistake(
        "one that is being restarted is said to run",
        replaced("report-running-only", "process.status is ProcessStatus.RUNNING", "True"),
        f"{GUARDS}::test_a_call_repeated_while_the_agent_is_restarted_waits_for_it",
    ),
    Mistake(
        "what a caller was refused is tried by all hosts",
        replaced("refused-agent-unwanted", "wanted_here", "False"),
        f"{FAULTS}::test_what_a_direct_caller_can_not_have_is_tried_by_nobody_else",
    ),
    Mistake(
        "an agent is released before it has ended",
        instead(
            "end-before-release",
            "await self.registry.release(self.name, copy.agent.agent_id, copy.fence, status)\nawait self.processes.end(copy.agent.agent_id, timeout_seconds)",
        ),
        f"{GUARDS}::test_nobody_has_an_agent_before_it_has_ended_here",
    ),
    Mistake(
        "the lease of one that is being stopped runs out",
        instead(
            "end-before-release",
            "copy.hold.drop()\nawait self.processes.end(copy.agent.agent_id, timeout_seconds)",
        ),
        f"{GUARDS}::test_nobody_has_an_agent_before_it_has_ended_here",
    ),
    Mistake(
        "the end of one agent holds up the ends of all others",
        instead("agent-ends-concurrently", "await self._tolerate_outages(self._correct(copy))"),
        f"{GUARDS}::test_a_slow_end_holds_up_no_other",
    ),
    Mistake(
        "what could not be told is never told",
        replaced("untold-status-retried", " and self._unreported(copy) is None", ""),
        f"{GUARDS}::test_an_agent_that_started_while_redis_was_away_is_found_afterwards",
    ),
    Mistake(
        "the news of an old fence counts",
        replaced("event-of-own-fence", "copy.fence != process.fence", "False"),
        f"{GUARDS}::test_the_news_of_an_older_fence_is_nobodys",
    ),
    Mistake(
        "the news of an old crash counts",
        replaced("crash-of-live-copy", " and not self._lives(process.agent_id)", ""),
        f"{GUARDS}::test_the_news_of_an_old_crash_does_not_end_the_agent_that_runs_now",
    ),
    Mistake(
        "a copy that is another host's runs on",
        removed("lost-agent-ended"),
        f"{GUARDS}::test_a_slow_end_holds_up_no_renewal",
    ),
    Mistake(
        "a host that comes second to an empty redis keeps its copy",
        replaced("regained-fence", "grant.given and grant.fence == copy.fence", "True"),
        f"{GUARDS}::test_a_copy_that_another_host_told_an_empty_redis_of_first_is_ended",
    ),
    Mistake(
        "what redis has forgotten is ended",
        replaced(
            "forgotten-agent-regained",
            "standing is RenewalReply.FORGOTTEN and await self._regained(copy)",
            "False",
        ),
        f"{GUARDS}::test_an_empty_redis_is_told_under_the_same_fence",
    ),
    Mistake(
        "an agent that was stopped while it started stays",
        replaced("start-of-unwanted-ended", 'word == "kept"', "True"),
        f"{GUARDS}::test_an_agent_stopped_while_it_starts_does_not_stay",
    ),
    Mistake(
        "what a caller has given up is started all the same",
        removed("abandoned-start-ended"),
        f"{FAULTS}::test_a_call_that_is_given_up_and_repeated_starts_one_agent",
    ),
    Mistake(
        "documents are decoded as deep as they are",
        replaced("deep-document-refused", "RecursionError", "ZeroDivisionError"),
        f"{GUARDS}::test_documents_that_are_nested_too_deeply_are_refused",
    ),
]

AROUND = [
    Mistake(
        "hosts are declared dead as soon as redis is back",
        replaced("calm-before-reclaim", "self._host.calm_seconds >= ttl / 2", "True"),
        f"{GUARDS}::test_after_trouble_with_redis_nobody_is_declared_dead_too_early",
    ),
    Mistake(
        "only a renewal notices that redis is away",
        removed("failed-look-disturbs"),
        f"{GUARDS}::test_after_trouble_with_redis_nobody_is_declared_dead_too_early",
    ),
    Mistake(
        "a host that slept declares the others dead",
        removed("paused-host-disturbs"),
        f"{GUARDS}::test_a_host_that_stood_still_lets_the_others_speak_first",
    ),
    Mistake(
        "a record that can't be read ends all hosts",
        replaced("unreadable-agent-record", "(ValueError, msgspec.MsgspecError)", "ZeroDivisionError"),
        f"{OUTAGES}::test_a_record_that_can_not_be_read_ends_no_host",
    ),
    Mistake(
        "the next host is asked under the old fence",
        removed("next-host-fence"),
        f"{HOSTS}::test_a_host_that_gives_an_agent_back_does_not_end_the_search",
    ),
    Mistake(
        "what could not be placed is tried by others though its caller was told",
        removed("unplaced-agent-unwanted"),
        f"{HOSTS}::test_an_engine_says_what_went_wrong_and_leaves_nothing",
    ),
    Mistake(
        "an agent that moves is not stopped first",
        replaced("move-stops-old-copy", "placed.host", "False"),
        f"{HOSTS}::test_an_agent_moves_when_it_is_told",
    ),
    Mistake(
        "a host that is about to give an agent back has it",
        replaced(
            "starting-agent-awaited",
            "known and known.host == host.name and known.status is AgentStatus.STARTING",
            "False",
        ),
        f"{FAULTS}::test_a_host_that_is_too_slow_gives_the_agent_back_and_the_next_one_has_it",
    ),
    Mistake(
        "a message that a dead copy had begun waits for its lease",
        replaced("resident-inherits-messages", "inherits=earlier,", ""),
        f"{RESIDENTS}::test_what_a_dead_copy_had_begun_goes_on_at_once_in_the_next",
    ),
    Mistake(
        "a resident hears its host only when it has joined",
        replaced("resident-stop-while-joining", ", stopped", ""),
        f"{RESIDENTS}::test_one_that_is_stopped_while_it_waits_for_redis_ends_willingly",
    ),
    Mistake(
        "one that is disowned hands back what it has begun",
        instead("disowned-resident-stops-once", "worker.request_stop()\nworker.request_stop()"),
        f"{RESIDENTS}::test_one_that_is_disowned_finishes_what_it_has_begun",
    ),
    Mistake(
        "one that never says how it is is not missed",
        removed("resident-health-reported"),
        f"{RESIDENTS}::test_one_that_is_not_well_is_started_again[Mute]",
    ),
    Mistake(
        "who asks for an agent lifts the operator's limit",
        replaced("memory-limit-of-operator", "min(bounds, default=0)", "bounds[0] if bounds else 0"),
        f"{GUARDS}::test_an_agent_may_ask_for_less_memory_than_the_host_allows_and_not_for_more",
    ),
    Mistake(
        "a caller waits only as long as the agent may take",
        replaced(
            "start-call-timeout",
            "max(self.grpc_timeout_seconds, self.ready_seconds + _ANSWER_SECONDS)",
            "self.grpc_timeout_seconds",
        ),
        f"{FAULTS}::test_an_agent_that_is_never_ready_is_given_up",
    ),
    Mistake(
        "all that a host can't take is sent to all hosts",
        replaced("agent-payload-limit", "len(agent.payload) > MAX_AGENT_BYTES", "False"),
        f"{FAULTS}::test_too_much_is_refused_before_anybody_is_asked",
    ),
    Mistake(
        "a dead machine is waited for as long as gRPC likes",
        replaced("grpc-connect-timeout", '("grpc.min_reconnect_backoff_ms", 2000),', ""),
        f"{FAULTS}::test_a_host_that_is_not_there_any_more_is_passed_over_quickly[is silent]",
    ),
    Mistake(
        "a heartbeat that can't be read ends all placing",
        replaced("unreadable-heartbeat", "with contextlib.suppress(ValueError)", "if True"),
        f"{FAULTS}::test_a_heartbeat_that_can_not_be_read_is_no_host",
    ),
    Mistake(
        "a host says that it is ready while it waits for Redis",
        replaced("host-readiness", "self._server.is_open and ", ""),
        f"{DOOR}::test_a_host_without_redis_is_not_ready_until_it_has_one",
    ),
    Mistake(
        "a host that waits for its name answers its callers",
        replaced("host-not-ready-at-start", "False", "True"),
        f"{DOOR}::test_a_host_that_does_not_serve_yet_is_passed_over_at_once",
    ),
    Mistake(
        "a host counts with all cores of its machine",
        replaced("host-cpu-affinity", "len(os.sched_getaffinity(0))", 'os.sysconf("SC_NPROCESSORS_ONLN")'),
        f"{RESOURCES}::test_placement_and_metrics_count_with_the_cores_that_the_host_may_use",
    ),
    Mistake(
        "what an agent used is forgotten with it",
        removed("ended-agent-cpu"),
        f"{RESOURCES}::test_the_cpu_time_of_agents_that_have_ended_stays_counted",
    ),
    Mistake(
        "the CPU time of living agents only is summed up",
        instead(
            "host-cpu-of-all-agents",
            "metrics.host_cpu_seconds.reset()\nmetrics.host_cpu_seconds.inc(sum(each.cpu_seconds for each in usage.values()))",
        ),
        f"{RESOURCES}::test_the_cpu_time_of_agents_that_have_ended_stays_counted",
    ),
    Mistake(
        "locations are renewed by their ttl only",
        replaced("location-renewal-interval", "self._members.heartbeat_seconds", "3600"),
        f"{HOSTS}::test_locations_are_renewed_at_the_pace_of_the_heartbeat",
    ),
    Mistake(
        "a wrong request is its host's error",
        replaced("refused-by-caller", 'message.get("refused", False)', "False"),
        f"{HOSTS}::test_a_wrong_class_is_its_callers_mistake_and_none_of_the_hosts",
    ),
    Mistake(
        "whom nobody answers is asked and waited for",
        replaced("crashed-resident-refuses", "status == AgentStatus.CRASHED", "False"),
        f"{RESIDENTS}::test_to_ask_one_that_has_crashed_fails_at_once_and_what_is_sent_waits_for_it",
    ),
    Mistake(
        "agents never give way",
        replaced("agent-niceness", ", nice=self.settings.nice or None", ""),
        f"{RESOURCES}::test_agents_give_way_as_much_as_the_host_says",
    ),
    Mistake(
        "the agents of a dead host wait for a minute of calm",
        replaced("calm-before-reclaim", "ttl / 2", "60"),
        f"{HOSTS}::test_a_dead_hosts_agents_are_back_elsewhere",
    ),
    Mistake(
        "two hosts have one name",
        replaced("host-name-unique", "not await self._name_is_taken()", "True"),
        f"{FAULTS}::test_a_second_host_of_the_same_name_waits_and_says_so",
    ),
    Mistake(
        "a host that waited for its name serves when it is stopped",
        replaced("host-name-before-serving", "_has_name()", "_has_name() or True"),
        f"{FAULTS}::test_a_waiting_host_that_is_stopped_leaves_the_other_alone",
    ),
    Mistake(
        "callers of a host without redis are told that they are wrong",
        removed("redis-outage-unavailable"),
        f"{OUTAGES}::test_a_host_without_redis_is_not_the_one_to_ask",
    ),
    Mistake(
        "what is no request at all is an unknown error",
        replaced("undecodable-request", "DecodeError", "ZeroDivisionError"),
        f"{FUZZ}::test_a_host_answers_what_is_no_request_at_all",
    ),
    Mistake(
        "any text is an id",
        replaced(
            "agent-id-qualified", "qualified(given or in_spec, guild, organization)", "given or in_spec"
        ),
        f"{HOSTS}::test_what_can_not_be_started_says_why",
    ),
    Mistake(
        "an agent may need less than nothing",
        replaced(
            "agent-needs-range",
            "not (0 <= needs.cpu <= _MOST_CPU and 0 <= needs.memory_mb <= _MOST_MEMORY_MB)",
            "False",
        ),
        f"{FAULTS}::test_an_agent_that_eats_memory_is_told_its_limit",
    ),
    Mistake(
        "any token will do",
        replaced("host-token", "hmac.compare_digest(token, self._expected)", "token"),
        f"{FAULTS}::test_a_wrong_token_is_said",
    ),
    Mistake(
        "a host listens to everybody without TLS",
        replaced(
            "insecure-host-loopback", "not settings.insecure and not _is_loopback(settings.listen)", "False"
        ),
        f"{TLS}::test_beyond_this_machine_a_host_needs_tls_or_a_word[0.0.0.0]",
    ),
    Mistake(
        "callers need not show a certificate",
        replaced(
            "client-certificate-required", "bool(settings.tls_ca) and settings.tls_verify_callers", "False"
        ),
        f"{TLS}::test_a_caller_without_a_certificate_is_refused_where_hosts_ask_for_one",
    ),
    Mistake(
        "a wrong key is noticed by callers only",
        removed("certificate-pair-at-start"),
        f"{TLS}::test_a_wrong_file_is_named_at_the_start[files4-are no certificate and its key]",
    ),
    Mistake(
        "a certificate is read once",
        replaced("server-certificate-reload", "now == last", "True"),
        f"{TLS}::test_new_certificates_are_shown_without_a_restart",
    ),
    Mistake(
        "a half written certificate is shown",
        removed("certificate-pair-on-reload"),
        f"{TLS}::test_new_certificates_are_shown_without_a_restart",
    ),
    Mistake(
        "a caller reads its certificates once",
        replaced("client-certificate-reload", "stamp != self._stamp", "False"),
        f"{TLS}::test_a_caller_calls_with_its_new_files",
    ),
]


class TestTheTable(KnownMistakes):
    mistakes = TABLE


class TestHosts(KnownMistakes):
    mistakes = HOST


class TestAround(KnownMistakes):
    mistakes = AROUND
