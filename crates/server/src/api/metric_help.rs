//! What each figure means, in the text that Prometheus reads.

use std::collections::HashSet;

/// The text with a `HELP` line for every figure that has none.
pub fn with_help(text: &str) -> String {
    let described: HashSet<&str> = text.lines().filter_map(|line| name_of(line, "# HELP ")).collect();
    let mut helped = String::with_capacity(text.len() + text.len() / 4);
    for line in text.lines() {
        if let Some(name) = name_of(line, "# TYPE ").filter(|name| !described.contains(name)) {
            helped.push_str(&format!("# HELP {name} {}\n", help(name)));
        }
        helped.push_str(line);
        helped.push('\n');
    }
    helped
}

fn name_of<'a>(line: &'a str, start: &str) -> Option<&'a str> {
    line.strip_prefix(start)?.split_whitespace().next()
}

fn help(name: &str) -> &'static str {
    HELP.iter().find(|(known, _)| *known == name).map_or("See docs/operations/monitoring.md.", |(_, help)| help)
}

const HELP: &[(&str, &str)] = &[
    ("process_cpu_seconds_total", "User and system CPU time of the process."),
    ("process_open_fds", "Open file descriptors of the process."),
    ("process_resident_memory_bytes", "Resident memory of the process."),
    ("process_start_time_seconds", "Start of the process, in seconds since 1970."),
    ("process_virtual_memory_bytes", "Virtual memory of the process."),
    ("tenure_attempt_seconds", "Time from the grant of an attempt to its end, by queue."),
    ("tenure_attempts_total", "Attempts that ended, by queue and outcome."),
    ("tenure_audit_failures_total", "Audit rows that could not be written."),
    ("tenure_audit_refusals_dropped_total", "Refused requests that were not audited because there were too many."),
    ("tenure_auth_failures_total", "Refused credentials, by kind."),
    ("tenure_batch_seconds", "Time from the start of a batch to its commit."),
    ("tenure_batches_split_total", "Batches that failed and were run command by command."),
    ("tenure_batches_total", "Committed batches."),
    ("tenure_buffer_duplicate_rows_total", "Rows of buffered datasets that existed already."),
    ("tenure_buffer_rejections_total", "Batches of rows that were rejected."),
    ("tenure_buffer_rows_total", "Rows that sinks of buffered datasets wrote."),
    ("tenure_build_info", "Version of this process; always 1."),
    ("tenure_commands_total", "Commands in committed batches."),
    ("tenure_config_reload_failures_total", "Reloads of the configuration that were rejected."),
    ("tenure_config_reloads_total", "Reloads of the configuration."),
    ("tenure_connections_refused_total", "Connections refused because their address had too many."),
    ("tenure_connections_total", "Accepted connections."),
    ("tenure_credential_grants_total", "Temporary keys for the object store."),
    ("tenure_dag_failures_total", "Times that the DAGs of an organisation could not be served."),
    ("tenure_dag_firings_total", "Tasks that sources of DAGs created by themselves."),
    ("tenure_data_store_failures_total", "Times that a sink could not reach the data store."),
    ("tenure_duty_held", "1 if this process performs the duty."),
    ("tenure_event_history_size", "Events of sandboxes that can be replayed."),
    ("tenure_event_subscribers", "Readers of the events of sandboxes."),
    ("tenure_events_total", "Events of sandboxes."),
    ("tenure_grants_undelivered_total", "Grants whose claimer had disconnected."),
    ("tenure_http_request_seconds", "Time until an answer begins, by route; claims include their waiting."),
    ("tenure_http_requests_total", "Answers, by route and status."),
    ("tenure_job_wakeup_polls", "Workers of jobs that wait for an answer."),
    ("tenure_job_wakeups_given_total", "Tasks of jobs that were named to workers that asked."),
    ("tenure_job_wakeups_repeated_total", "Wake-ups of jobs that were sent again."),
    ("tenure_lease_renewals_total", "Renewals of leases of sandboxes, by result."),
    ("tenure_leases_expired_total", "Leases of tasks that the reaper ended."),
    ("tenure_leases_total", "Leases of sandboxes, by status."),
    ("tenure_notices_heard_total", "Notices from other processes."),
    ("tenure_notices_sent_total", "Notices to other processes."),
    ("tenure_oidc_fetch_failures_total", "Failures to fetch the keys of the identity provider."),
    ("tenure_operation_failure_total", "Failed operations on sandboxes."),
    ("tenure_operation_latency_milliseconds", "Duration of operations on sandboxes."),
    ("tenure_operation_latency_milliseconds_max", "Longest operation on sandboxes."),
    ("tenure_operation_success_total", "Successful operations on sandboxes."),
    ("tenure_orphans_reaped_total", "Sandboxes that no row named and that were removed."),
    ("tenure_outbox_failed", "Entries of the outbox that failed for good."),
    ("tenure_outbox_failed_total", "Wake-ups that failed for good."),
    ("tenure_outbox_oldest_seconds", "Age of the oldest waiting entry of the outbox."),
    ("tenure_outbox_waiting", "Waiting entries of the outbox."),
    ("tenure_owner_quota_overrides_total", "Quotas of owners, by what they limit."),
    ("tenure_owner_quotas_total", "Quotas of owners."),
    ("tenure_push_circuits_open", "Queues whose push target this process leaves alone."),
    ("tenure_push_circuits_opened_total", "Times that a push target was left alone."),
    ("tenure_push_seconds", "Time from the first byte of a push to its outcome."),
    ("tenure_pushes_in_flight", "Pushes that are being sent or wait for an answer."),
    ("tenure_pushes_total", "Pushes, by outcome."),
    ("tenure_query_process_restarts_total", "Restarts of the query process."),
    ("tenure_queue_oldest_ready_seconds", "How long the oldest ready task of a queue has been ready; 0 without one."),
    ("tenure_rate_limit_allowed_total", "Calls that the rate limit allowed."),
    ("tenure_rate_limit_blocked_total", "Calls that the rate limit blocked."),
    ("tenure_rate_limit_evicted_buckets_total", "Callers forgotten by the rate limit for lack of memory."),
    ("tenure_reaper_skipped_total", "Leases that the reaper could not end."),
    ("tenure_rpc_duration_seconds", "Duration of calls to workers."),
    ("tenure_rpc_requests_total", "Calls to workers, by method and outcome."),
    ("tenure_s3_requests_total", "Requests to the S3 endpoint."),
    ("tenure_sandboxes_by_provider_total", "Sandboxes, by provider."),
    ("tenure_sandboxes_by_worker_total", "Sandboxes, by worker."),
    ("tenure_sandboxes_total", "Sandboxes, by state."),
    ("tenure_schedule_firings_total", "Firings of schedules, by outcome."),
    ("tenure_spawn_queue_capacity", "Spawns that may wait for room."),
    ("tenure_spawn_queue_depth", "Spawns that wait for room."),
    ("tenure_spawn_queue_dequeued_total", "Spawns that got room after waiting."),
    ("tenure_spawn_queue_enqueued_total", "Spawns that had to wait."),
    ("tenure_spawn_queue_timeout_total", "Spawns that waited in vain."),
    ("tenure_spawn_queue_wait_milliseconds", "How long spawns waited."),
    ("tenure_spawn_queue_wait_milliseconds_max", "Longest wait of a spawn."),
    ("tenure_staging_failures_total", "Staged outputs of dead attempts that could not be removed."),
    ("tenure_staging_removed_total", "Staged outputs of dead attempts that were removed."),
    ("tenure_stream_truncated_total", "Streams whose reader was gone before the command ended."),
    ("tenure_task_events_total", "Changes of tasks and runs, by kind."),
    ("tenure_task_log_pieces_dropped_total", "Pieces of task logs that were dropped because there were too many."),
    ("tenure_task_wait_seconds", "Time from when a task was ready to its grant, by queue."),
    ("tenure_task_worker_held", "Attempts that the workers which are here hold."),
    ("tenure_task_worker_slots", "Slots of the workers that are here and told their number."),
    ("tenure_task_workers", "Workers that take tasks, by status."),
    ("tenure_tasks_pruned_total", "Tasks removed by retention."),
    ("tenure_tls_handshake_failures_total", "TLS handshakes that failed or took too long."),
    ("tenure_transport_failures_total", "Calls that did not reach the transport."),
    ("tenure_wakeups_published_total", "Wake-ups that the transport accepted."),
    ("tenure_wakeups_refed_total", "Wake-ups that a sweep found missing."),
    ("tenure_wakeups_taken_over_total", "Wake-ups received by a worker that then went silent."),
    ("tenure_worker_clock_skew_total", "Callbacks with a timestamp more than 5 minutes off."),
    ("tenure_worker_heartbeat_age_seconds", "Age of the last heartbeat of workers that hold sandboxes."),
    ("tenure_workers_total", "Workers that hold sandboxes, by status."),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(folder: &std::path::Path, names: &mut HashSet<String>) {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                for call in ["metrics::counter!(\"", "metrics::gauge!(\"", "metrics::histogram!(\"", "# TYPE "] {
                    let found = text.split(call).skip(1).filter_map(|rest| rest.split(['"', ' ', '\\']).next());
                    names.extend(found.filter(|name| name.starts_with("tenure_")).map(ToOwned::to_owned));
                }
            }
        }
    }

    #[test]
    fn every_figure_of_the_server_and_the_engine_has_a_help_text() {
        let mut names = HashSet::new();
        for part in ["server", "engine", "rpc", "s3", "cli"] {
            sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part).join("src"), &mut names);
        }
        assert!(names.len() > 60, "{names:?}");
        let own = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/metrics.rs")).unwrap();
        let unknown: Vec<_> = names
            .iter()
            .filter(|name| !HELP.iter().any(|(known, _)| known == name) && !own.contains(&format!("# HELP {name} ")))
            .collect();
        assert!(unknown.is_empty(), "without a help text: {unknown:?}");
        assert!(HELP.is_sorted_by_key(|(name, _)| name), "sorted, to find them");
    }

    #[test]
    fn a_figure_without_a_help_line_gets_one() {
        let text = "# TYPE tenure_batches_total counter\ntenure_batches_total 1\n# HELP a own\n# TYPE a gauge\na 1\n";
        let helped = with_help(text);
        assert!(
            helped.starts_with("# HELP tenure_batches_total Committed batches.\n# TYPE tenure_batches_total counter\n")
        );
        assert_eq!(helped.matches("# HELP a ").count(), 1);
    }
}
