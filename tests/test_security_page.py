"""Tests that each claim in addon/docs/security.md has tests that prove it.

A table lists the tests for each sentence by file (below ``tests/``) and function. The tests run in their own files.
This file only checks that no listed test is missing, that no claim lacks a test, and that all numbers equal those in
the code.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from support.mitmdump import ROOT
from toolsim.core import time_slice
from toolsim.mcp import approvals, pool, stdio
from toolsim.proxy import refusals, upgrades, worker, wrong_keys
from toolsim.proxy.jobs import LOOP_BYTES
from toolsim.proxy.options.settings import Limits
from toolsim.request.rewrite import _MAX_TOOLS_BYTES
from toolsim.response import checker
from toolsim.schema import MAX_SCHEMA_BYTES
from toolsim.sockets import protocol, requests, server, websocket
from toolsim.wire.json_codec import MAX_DEPTH
from toolsim.wire.sse import MAX_EVENT_VALUES

PAGE = (ROOT / "addon" / "docs" / "security.md").read_text()

CLAIMS = """
# A client
If `toolsim_api_key` is set
    attack/test_attack.py::test_attack
    proxy/test_access.py::test_every_request_needs_the_key
A client cannot learn the key
    attack/test_attack.py::test_attack
    proxy/test_access.py::test_every_request_needs_the_key
A client's `Authorization`
    proxy/test_access.py::test_proxy_header_leaves_clients_other_key
Clients that use the listener as their proxy
    proxy/test_access.py::test_forwarding_requires_the_key
This header contains the key
    proxy/test_access.py::test_forwarding_requires_the_key
In mitmproxy's `socks5` mode
    unit/proxy/test_access.py::test_proxy_key_does_not_open_the_listener
    unit/proxy/test_incoming.py::test_kind_of_flow_is_recognized
In these modes, toolsim requires
    unit/proxy/test_access.py::test_proxy_key_does_not_open_the_listener
    unit/proxy/test_incoming.py::test_kind_of_flow_is_recognized
A listener with a built-in backend
    unit/proxy/test_access.py::test_forwarding_is_limited
    unit/proxy/test_access.py::test_forwarding_is_limited_with_a_models_file
    proxy/test_access.py::test_builtin_backend_does_not_forward
    proxy/test_access.py::test_upstream_option_forwards_other_traffic
Therefore, no client can
    unit/proxy/test_access.py::test_forwarding_is_limited
    unit/proxy/test_access.py::test_forwarding_is_limited_with_a_models_file
    proxy/test_access.py::test_builtin_backend_does_not_forward
    proxy/test_access.py::test_upstream_option_forwards_other_traffic
If toolsim serves one
    proxy/test_access.py::test_only_the_backend_is_reachable
Large bodies (over 32 KiB
    unit/proxy/test_jobs.py::test_heavy_jobs_are_recognized
    unit/proxy/test_worker.py::test_heavy_jobs_run_in_a_worker
    unit/proxy/test_worker.py::test_worker_runs_jobs_within_limits
    unit/proxy/test_worker.py::test_empty_lists_exceed_the_memory_limit
Rewriting a smaller body
    unit/proxy/test_jobs.py::test_heavy_jobs_are_recognized
    unit/proxy/test_worker.py::test_worker_runs_jobs_within_limits
    unit/proxy/test_worker.py::test_empty_lists_exceed_the_memory_limit
Clients take turns
    unit/proxy/test_worker.py::test_owners_take_turns
    unit/core/test_serial_executor.py::test_owners_take_turns
If an answer is sent over WebSocket
    unit/proxy/mitmproxy12/test_internal_flow.py::test_large_reads_take_turns
    unit/core/test_turns.py::test_owners_take_turns
toolsim estimates the cost
    unit/schema/test_patterns.py::test_oversized_pattern_is_never_compiled
    unit/schema/test_budget.py::test_each_step_is_short
Argument checks block
    unit/schema/test_patterns.py::test_oversized_pattern_is_never_compiled
    unit/schema/test_budget.py::test_each_step_is_short
Requests (`toolsim_max_body_bytes`)
    unit/proxy/test_decoding.py::test_compression_bombs_use_little_memory
    unit/response/test_checker.py::test_oversized_schema_is_not_checked
    unit/proxy/test_exchange.py::test_dropped_request_body_is_a_413
    unit/request/test_transcript.py::test_oversized_outputs_are_replaced
toolsim parses JSON to
    unit/wire/test_json_codec.py::test_depth_counts_only_arrays_and_objects
    unit/proxy/test_worker.py::test_nested_body_does_not_end_the_worker
    unit/proxy/test_worker.py::test_unpicklable_result_is_an_internal_error
No body can crash the process
    unit/wire/test_json_codec.py::test_depth_counts_only_arrays_and_objects
    unit/proxy/test_worker.py::test_nested_body_does_not_end_the_worker
    unit/proxy/test_worker.py::test_unpicklable_result_is_an_internal_error
References in a JSON
    unit/schema/test_compile.py::test_references_are_not_fetched
A WebSocket message can
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_server.py::test_unused_connection_is_closed
A connection can have at most 64
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_connection.py::test_flood_affects_only_its_sender
    unit/sockets/test_connection.py::test_lanes_run_concurrently
toolsim closes a connection after
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_server.py::test_unused_connection_is_closed
Each client key can
    proxy/test_websocket.py::test_connections_per_key_are_limited
Large WebSocket messages are
    unit/sockets/test_server.py::test_large_message_is_read_in_a_worker
All WebSocket connections together
    unit/core/test_fair_cache.py::test_largest_share_is_evicted_first
toolsim first evicts
    unit/core/test_fair_cache.py::test_largest_share_is_evicted_first
If a client exceeds a limit
    unit/sockets/test_connection.py::test_flood_affects_only_its_sender
toolsim checks the key
    proxy/test_websocket.py::test_upgrade_requires_the_key
    proxy/test_websocket.py::test_unlisted_page_is_refused
toolsim reads frames in
    unit/sockets/test_websocket.py::test_other_tasks_run_between_frames
    unit/sockets/test_connection.py::test_events_are_sent_in_slices
A connection can send 2,000
    unit/sockets/test_websocket.py::test_cost_of_a_frame
    unit/sockets/test_websocket.py::test_rates_match_the_security_page
    unit/sockets/test_server.py::test_unreadable_message_costs_more
A message that cannot be parsed
    unit/sockets/test_websocket.py::test_cost_of_a_frame
    unit/sockets/test_websocket.py::test_rates_match_the_security_page
    unit/sockets/test_server.py::test_unreadable_message_costs_more
Frames of 1 KiB
    unit/sockets/test_websocket.py::test_large_message_in_many_frames
If a connection exceeds the rate limit
    unit/sockets/test_websocket.py::test_flood_closes_its_connection
If 1 MiB of answers is buffered
    proxy/test_websocket.py::test_unread_data_is_bounded_per_connection
    unit/sockets/test_requests.py::test_unread_bytes_pause_all_backends_of_a_connection
    unit/sockets/test_websocket.py::test_messages_wait_for_a_client_that_does_not_read
If 1 MiB of errors is buffered
    unit/sockets/test_connection.py::test_unread_errors_are_limited
    unit/sockets/test_connection.py::test_single_unread_error_can_have_any_size
    unit/sockets/test_server.py::test_client_that_reads_late_causes_no_deadlock
After that, each of these answers
    proxy/test_websocket.py::test_unread_data_is_bounded_per_connection
    unit/sockets/test_requests.py::test_unread_bytes_pause_all_backends_of_a_connection
    unit/sockets/test_websocket.py::test_messages_wait_for_a_client_that_does_not_read
The kernel buffers at most
    unit/sockets/test_server.py::test_kernel_buffers_are_small
A client cannot read another client's stored
    unit/proxy/test_access.py::test_owners_are_distinct_and_hide_the_key
    unit/stores/test_record.py::test_store_behaves_like_a_plain_model
Each key has a
    unit/proxy/test_access.py::test_owners_are_distinct_and_hide_the_key
    unit/stores/test_record.py::test_store_behaves_like_a_plain_model
The store's URL limits
    unit/background/test_slots.py::test_free_slots_go_to_the_key_with_fewer
    unit/background/test_endpoints.py::test_starting_answers_count_toward_the_limit
The store limits
    unit/stores/test_record.py::test_largest_partition_is_evicted_first
    unit/mcp/test_approvals.py::test_owner_loses_only_own_approvals
    unit/rounds/test_hidden_calls.py::test_client_evicts_only_its_own_entries
The same rule applies to calls
    unit/mcp/test_approvals.py::test_owner_loses_only_own_approvals
    unit/rounds/test_hidden_calls.py::test_client_evicts_only_its_own_entries
Clients also take turns
    unit/stores/test_sqlite.py::test_large_write_does_not_delay_small_ones
    unit/core/test_serial_executor.py::test_owner_with_most_calls_loses_the_latest
A connection to an MCP server is never closed
    unit/mcp/test_pool.py::test_client_limit_closes_its_oldest_connection
    unit/core/test_fair_lock.py::test_answers_take_turns
Answers take turns using
    unit/mcp/test_pool.py::test_client_limit_closes_its_oldest_connection
    unit/core/test_fair_lock.py::test_answers_take_turns
Damaged data in the
    unit/wire/responses/test_stored.py::test_damaged_record_is_not_found
    unit/proxy/test_response_store.py::test_any_store_exception_is_a_failure
The model never answers
    unit/wire/responses/test_stored.py::test_damaged_record_is_not_found
    unit/proxy/test_response_store.py::test_any_store_exception_is_a_failure
`chmod 600` protects the file
    unit/proxy/options/test_api_keys.py::test_file_readable_by_others_causes_a_warning
toolsim reloads the key
    proxy/test_users.py::test_user_removed_while_serving
    unit/proxy/options/test_api_keys.py::test_changed_file_applies_to_the_next_request
A user who has been removed
    proxy/test_users.py::test_user_removed_while_serving
    proxy/test_users.py::test_removed_user_is_refused_by_forward_proxy
A missing or invalid
    proxy/test_users.py::test_missing_or_broken_file_stops_the_start
    unit/proxy/options/test_api_keys.py::test_mistakes_are_reported_without_keys
While the proxy is
    proxy/test_users.py::test_user_removed_while_serving
    unit/proxy/options/test_api_keys.py::test_changed_file_applies_to_the_next_request
Stored answers are saved
    proxy/test_users.py::test_user_is_in_log_and_metrics
The user's name appears
    proxy/test_users.py::test_user_is_in_log_and_metrics
Every user of the proxy
    proxy/test_users.py::test_user_is_in_log_and_metrics
`concurrent` limits
    proxy/test_users.py::test_concurrent_turns_are_limited
    proxy/test_users.py::test_turns_per_minute_are_limited
A user can start
    unit/proxy/test_user_limits.py::test_turns_per_minute
If a turn exceeds a limit
    proxy/test_users.py::test_concurrent_turns_are_limited
The error has the API's own
    proxy/test_users.py::test_concurrent_turns_are_limited
For these limits, a
    proxy/test_users.py::test_turns_per_minute_are_limited
A background answer counts
    proxy/test_users.py::test_background_answer_is_a_turn_until_it_ends
Requests for token counts
    proxy/test_users.py::test_turns_per_minute_are_limited
After ten wrong keys
    proxy/test_users.py::test_wrong_keys_are_throttled
    unit/proxy/test_wrong_keys.py::test_source_of_wrong_keys_is_blocked
Users who have already been served
    proxy/test_users.py::test_wrong_keys_are_throttled
    unit/proxy/test_wrong_keys.py::test_source_of_wrong_keys_is_blocked
If `toolsim_api_key` is a
    unit/proxy/options/test_api_keys.py::test_single_key_has_an_owner
    unit/proxy/test_user_limits.py::test_without_limits
If a connection returns
    attack/test_attack.py::test_proxy_as_its_own_upstream_is_a_loop
    unit/proxy/test_loop_detection.py::test_request_loop_is_detected
To detect loops through other
    attack/test_attack.py::test_loop_of_two_proxies_fails_with_508
A built-in backend answers
    unit/backends/test_loopback.py::test_only_announced_flows_are_answered
# A model
A model cannot call
    unit/response/test_masked_calls.py::test_masked_call_is_never_passed_on
    unit/response/test_judge.py::test_verdict_table
Such a call stays
    unit/response/test_masked_calls.py::test_masked_call_is_never_passed_on
    unit/response/test_judge.py::test_verdict_table
A model cannot make
    unit/response/test_choice.py::test_call_beyond_the_limit_cuts_off_at_its_opening_tag
    unit/response/test_judge.py::test_number_of_calls_in_a_block_is_limited
A model cannot pass
    unit/response/test_judge.py::test_verdict_table
    unit/response/test_answer.py::test_strict_failure_cuts_off_the_backend
If the arguments for a strict tool
    unit/response/test_checker.py::test_timed_out_check_is_unsettled
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
The limits of a
    unit/response/test_checker.py::test_timed_out_check_is_unsettled
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
If the arguments for any other
    unit/response/test_checker.py::test_timed_out_check_is_unsettled
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
toolsim rewrites a model's
    unit/proxy/test_streamed.py::test_other_tasks_run_between_slices
    unit/proxy/test_streamed_slices.py::test_short_pieces_share_a_slice
    unit/response/test_judge.py::test_oversized_arguments_fail
    unit/proxy/test_streamed.py::test_oversized_stream_fails
The arguments of a call
    unit/proxy/test_streamed.py::test_other_tasks_run_between_slices
    unit/proxy/test_streamed_slices.py::test_short_pieces_share_a_slice
    unit/response/test_judge.py::test_oversized_arguments_fail
    unit/proxy/test_streamed.py::test_oversized_stream_fails
# A tool's output
In requests, toolsim never
    unit/request/test_record.py::test_output_record
    unit/request/test_rewrite.py::test_text_is_unchanged
Only text that the
    unit/request/test_record.py::test_output_record
    unit/request/test_rewrite.py::test_text_is_unchanged
Text cannot forge the record
    unit/request/test_record.py::test_user_line_is_never_a_record
    unit/request/test_record.py::test_invisible_characters_do_not_hide_a_record
If a line of
    unit/request/test_record.py::test_user_line_is_never_a_record
    unit/request/test_record.py::test_invisible_characters_do_not_hide_a_record
toolsim writes each output
    unit/request/test_record.py::test_user_line_is_never_a_record
    unit/request/test_record.py::test_invisible_characters_do_not_hide_a_record
Text cannot forge the
    unit/request/test_record.py::test_user_line_is_never_a_record
    unit/request/test_record.py::test_invisible_characters_do_not_hide_a_record
If the model writes a call
    unit/response/test_quoted_calls.py::test_call_copied_from_an_output_is_text
    unit/response/test_quoted_calls.py::test_wrapping_does_not_hide_a_quoted_call
A quoted call stays
    unit/response/test_quoted_calls.py::test_call_copied_from_an_output_is_text
    unit/response/test_quoted_calls.py::test_wrapping_does_not_hide_a_quoted_call
`toolsim_untagged=all` disables this check
    unit/response/test_quoted_calls.py::test_composed_call_is_not_quoted
Text in inline code
    unit/response/test_quotation.py::test_quoted_call_is_text
The model might believe
    unit/response/test_quoted_calls.py::test_calls_not_quoted_verbatim_are_made
If the order of the arguments
    unit/response/test_quoted_calls.py::test_calls_not_quoted_verbatim_are_made
If the model repeats a call
    unit/response/test_quoted_calls.py::test_calls_not_quoted_verbatim_are_made
toolsim lets the model repeat
    unit/response/test_quoted_calls.py::test_calls_not_quoted_verbatim_are_made
toolsim cannot search for
    unit/response/test_quoted_calls.py::test_stored_outputs_are_not_searched
Structured calls from the
    unit/response/test_quoted_calls.py::test_stored_outputs_are_not_searched
With `toolsim_untagged=no_use_tool` and your
    unit/response/test_quoted_calls.py::test_options_that_prevent_quoted_calls
To hide a tool
    unit/response/test_masked_calls.py::test_masked_call_is_never_passed_on
For a turn that
    unit/request/test_rewrite.py::test_choice_none
# A backend
A backend cannot use
    unit/response/test_toolbox.py::test_structured_calls_are_matched
    unit/response/test_choice.py::test_rejected_structured_call_becomes_text
The client receives such
    unit/response/test_toolbox.py::test_structured_calls_are_matched
    unit/response/test_choice.py::test_rejected_structured_call_becomes_text
In chat completions, toolsim
    unit/response/test_toolbox.py::test_structured_calls_are_matched
    unit/response/test_choice.py::test_rejected_structured_call_becomes_text
toolsim treats structured calls
    unit/response/test_masked_calls.py::test_broken_structured_call_becomes_text
A backend can call
    unit/response/test_masked_calls.py::test_undeclared_structured_call_becomes_text
If a request has no tools
    unit/request/test_rewrite.py::test_request_without_tools_passes
    unit/request/test_rewrite.py::test_request_without_tools_is_translated
A backend cannot make
    attack/test_cuts.py::test_backend_disconnects_after_any_byte
    unit/response/test_rewrite.py::test_stream_without_terminator_fails
    unit/response/test_rewrite.py::test_chat_stream_broken_after_a_call_keeps_the_call
    unit/response/test_answer.py::test_failure_after_a_call_causes_a_warning
    unit/response/test_answer.py::test_failure_after_a_responses_call_is_an_error
An answer that ends before its
    attack/test_cuts.py::test_backend_disconnects_after_any_byte
    unit/response/test_rewrite.py::test_stream_without_terminator_fails
    unit/response/test_rewrite.py::test_chat_stream_broken_after_a_call_keeps_the_call
    unit/response/test_answer.py::test_failure_after_a_call_causes_a_warning
    unit/response/test_answer.py::test_failure_after_a_responses_call_is_an_error
If a truncated answer
    unit/response/test_rewrite.py::test_chat_stream_broken_after_a_call_keeps_the_call
    unit/response/test_answer.py::test_failure_after_a_responses_call_is_an_error
The log reports this exception
    unit/response/test_answer.py::test_failure_after_a_call_causes_a_warning
A backend cannot keep
    unit/proxy/test_streamed.py::test_silence_causes_keepalives_and_an_error
    unit/proxy/mitmproxy12/test_connect.py::test_slow_connection_is_canceled
toolsim decodes compressed answers
    unit/proxy/test_decoding.py::test_compression_bombs_use_little_memory
    unit/wire/test_sse.py::test_oversized_event_is_truncated
    unit/wire/test_sse.py::test_event_with_too_many_values_fails
# An MCP server
The model receives both
    proxy/test_mcp.py::test_forged_records_are_text
A description can tell
    unit/mcp/test_server_config.py::test_approval_is_required_by_default
Only the operator's file
    unit/mcp/test_server_config.py::test_request_cannot_declare_commands_or_hosts
A server whose entry contains
    proxy/test_searches.py::test_web_search_over_both_apis
toolsim follows redirects only
    unit/mcp/test_server_config.py::test_request_cannot_declare_commands_or_hosts
    unit/mcp/test_web.py::test_other_hosts_are_not_contacted
A request can name
    unit/rounds/test_searches.py::test_disallowed_host_is_a_400
    unit/mcp/test_server_config.py::test_request_cannot_declare_commands_or_hosts
    unit/mcp/test_web.py::test_other_hosts_are_not_contacted
    unit/proxy/test_mcp_servers.py::test_mcp_is_off_by_default
A server receives only
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
A server does not receive
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
If [traces](inspect.md#traces) are enabled
    unit/otel/test_conventions.py::test_remote_server_is_identified_by_host_and_port
Tool names include the server's label
    unit/mcp/test_catalog.py::test_tool_names_are_unique
A server cannot forge
    proxy/test_mcp.py::test_forged_records_are_text
A message from a
    unit/mcp/test_web.py::test_answer_size_is_limited
    unit/mcp/test_web.py::test_compressed_answer_is_rejected
    unit/mcp/test_stdio.py::test_server_output_is_limited
Between two requests, a
    unit/mcp/test_web.py::test_answer_size_is_limited
    unit/mcp/test_web.py::test_compressed_answer_is_rejected
    unit/mcp/test_stdio.py::test_server_output_is_limited
toolsim refuses compressed HTTP
    unit/mcp/test_web.py::test_compressed_answer_is_rejected
toolsim limits the duration
    unit/mcp/test_connection.py::test_busy_server_times_out_without_being_dropped
    unit/mcp/test_outcome.py::test_errors_have_api_formats
    unit/rounds/test_hosted_calls.py::test_approval_requests_count_toward_the_limit
    unit/rounds/test_round_planner.py::test_limits_prevent_a_further_round
If a server fails
    unit/rounds/test_hosted_calls.py::test_failed_call_is_reported_to_the_model
When the proxy stops
    proxy/test_mcp.py::test_servers_end_with_the_proxy
On Linux, this includes
    proxy/test_mcp.py::test_orphaned_children_end_with_the_proxy
    unit/mcp/test_stdio.py::test_stopping_a_server_stops_its_children
On macOS, such child
    proxy/test_mcp.py::test_orphaned_children_end_with_the_proxy
    unit/mcp/test_stdio.py::test_stopping_a_server_stops_its_children
A server's secrets do
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
    unit/mcp/test_connection.py::test_secrets_are_never_in_messages
    unit/otel/test_conventions.py::test_remote_server_is_identified_by_host_and_port
toolsim stores the tool and
    unit/mcp/test_approvals.py::test_approval_returns_the_requested_call_once
    proxy/test_mcp.py::test_approval_is_for_one_call
An approval applies to
    unit/mcp/test_approvals.py::test_approval_returns_the_requested_call_once
    proxy/test_mcp.py::test_approval_is_for_one_call
An approval can be used
    unit/mcp/test_approvals.py::test_other_owners_cannot_approve
    unit/mcp/test_approvals.py::test_pending_approvals_expire
    unit/rounds/test_hosted_calls.py::test_repeated_decision_counts_once
Approvals do not survive
    unit/mcp/test_approvals.py::test_other_owners_cannot_approve
    unit/mcp/test_approvals.py::test_pending_approvals_expire
    unit/rounds/test_hosted_calls.py::test_repeated_decision_counts_once
toolsim does not offer
    proxy/test_mcp.py::test_unlisted_web_page_is_refused
    unit/proxy/test_mcp_servers.py::test_unlisted_web_page_has_no_access
Requests from such a
    proxy/test_mcp.py::test_unlisted_web_page_is_refused
    unit/proxy/test_mcp_servers.py::test_unlisted_web_page_has_no_access
# A bug in toolsim
A bug in toolsim ends only
    faults/test_faults.py::test_function_fails_once
After an exception, toolsim
    faults/test_faults.py::test_function_fails_once
toolsim does not forward the request
    faults/test_faults.py::test_function_fails_once
The client receives a
    unit/proxy/test_streamed.py::test_exception_ends_the_answer
    unit/proxy/test_guard.py::test_location_of_an_exception_is_logged
The same rules apply
    proxy/test_guard.py::test_exception_in_another_script_blocks_traffic
toolsim logs each refused
    proxy/test_refusals.py::test_wrong_keys_are_logged
    proxy/test_refusals.py::test_foreign_hosts_and_pages_are_logged
    proxy/test_refusals.py::test_refused_tunnels_are_logged
    proxy/test_refusals.py::test_loops_are_logged
Log lines about refused
    unit/proxy/test_refusals.py::test_log_lines_per_source_are_limited
    unit/proxy/test_refusals.py::test_log_lines_of_all_sources_are_limited
A source is an
    unit/proxy/test_refusals.py::test_source_is_an_address_or_a_network
A key identifies the same owner
    unit/proxy/test_access.py::test_all_spellings_of_a_key_have_one_owner
With `toolsim_api_key`, the owner
    unit/proxy/test_access.py::test_owner_is_the_accepted_key
This also applies to
    unit/proxy/test_access.py::test_owner_is_the_accepted_key
Without `toolsim_api_key`, if a
    unit/proxy/test_access.py::test_api_specific_header_takes_precedence
# A web page
By default, toolsim allows
    unit/proxy/test_access.py::test_pages_are_accepted_by_origin
    unit/proxy/test_access.py::test_local_pages_are_accepted_by_default
If a key is set, a page
    unit/proxy/test_access.py::test_key_is_sufficient_for_pages
If no key is set, toolsim
    proxy/test_access.py::test_unlisted_origin_is_refused
The only exception is a page
    proxy/test_access.py::test_page_of_the_listener_can_call_it
toolsim refuses a page
    proxy/test_access.py::test_rebound_host_name_is_refused
    unit/proxy/test_access.py::test_foreign_host_names_are_refused
The Host header must be
    proxy/test_access.py::test_rebound_host_name_is_refused
    unit/proxy/test_access.py::test_foreign_host_names_are_refused
toolsim also accepts the
    unit/proxy/test_access.py::test_local_host_names_are_accepted
`/toolsim/health` and
    unit/proxy/test_route.py::test_route_of_a_request
`/api/hello`, which Claude Code requests at
    unit/proxy/test_route.py::test_route_of_a_request
If the listener is
    proxy/test_access.py::test_codex_on_all_interfaces_serves_this_machine_only
# What is written down
The log, metrics, comments
    proxy/test_telemetry.py::test_each_exchange_is_reported_once
    unit/response/test_judge.py::test_invented_name_is_not_logged
toolsim removes secrets from
    unit/recordings/test_redact.py::test_secret_is_recognized_by_shape
    unit/recordings/test_redact.py::test_secret_in_deltas_is_hidden
    proxy/test_recording.py::test_secrets_are_not_recorded
"""
"""The beginning of each sentence on the page, followed by the tests that prove it."""

EXPLAINS = (
    "Background answers continue",
    "Clients without a key",
    "To limit the number of turns",
    "People who share",
    "`toolsim_api_key=file:keys.txt` names",
    "```text",
    "`printf %s KEY",
    "Behind a load balancer",
    "Such a server can",
    "toolsim limits what",
    "A server cannot send",
    "This also applies to tool outputs",
    "You can require approval",
    "If the outcome matters",
    "A filter with `read_only`",
    "see the arguments of",
    "A model derives the arguments",
    "The owner of a host name",
    "If a client's request",
    "If no key is set, the rules",
    "If you serve toolsim",
    "The key is transmitted",
    "Flows in mitmweb",
    "Flows are meant only",
    "A client can send",
    "These requests can incur",
    "A client with many connections",
    "A client that invents many keys",
    "A client cannot cause a request loop",
    "To separate their answers",
    "A model can write",
    "Text that a tool, a user",
    "A proxy cannot detect",
    "The following risks remain.",
    "Each item is a",
    "You can reduce these",
    "A backend can send wrong data",
    "An MCP server ([from",
    "lie in the descriptions",
    "do anything that its user account",
    "A local server is a program",
    "List only hosts",
    "Anyone who can use the proxy",
    "Set `toolsim_api_key` if other",
    "A web page in a browser can send",
    "These health pages reveal",
    "A neighbor can reach",
    "Check captures before you",
)
"""Beginnings of sentences that only introduce other sentences, describe possibilities, or give advice."""

KIB, MIB = 1024, 1024 * 1024
SLICES = (round(time_slice.SLICE_SECONDS * 1000), round(time_slice.PAUSE_SECONDS * 1000))
UNITS, BURST = websocket.UNITS_PER_SECOND, websocket.UNITS_BURST
NUMBERS: dict[str, tuple[float, ...]] = {
    "Large bodies (over": (LOOP_BYTES / KIB, worker.MAX_SECONDS, worker.GROWTH),
    "Requests (`toolsim_max_body_bytes`)": (MAX_SCHEMA_BYTES / KIB, _MAX_TOOLS_BYTES / MIB),
    "toolsim parses JSON to": (MAX_DEPTH,),
    "A connection can have at most": (protocol.MAX_WAITING, protocol.MAX_RUNNING),
    "toolsim closes a connection after": (server.SILENT_SECONDS / 60, server.UNUSED_SECONDS / 3600),
    "Each client key can": (upgrades.MAX_CONNECTIONS,),
    "All WebSocket connections together": (server.MEMORY_BYTES / MIB,),
    "toolsim reads frames in": SLICES,
    "toolsim rewrites a model's": SLICES,
    "A connection can send": (
        UNITS / websocket.FRAME_UNITS,
        UNITS / websocket.MESSAGE_UNITS,
        BURST / websocket.FRAME_UNITS,
        BURST / websocket.MESSAGE_UNITS,
    ),
    "A message that cannot be parsed": (websocket.UNREADABLE_UNITS / websocket.MESSAGE_UNITS,),
    "Frames of 1 KiB": (websocket.FREE_FRAME_BYTES / KIB,),
    "If a connection exceeds the rate limit": (websocket.POLICY,),
    "If 1 MiB of answers is buffered": (requests.MAX_UNREAD_BYTES / MIB,),
    "If 1 MiB of errors is buffered": (protocol.MAX_UNREAD_ERRORS / MIB, websocket.POLICY),
    "The kernel buffers at most": (2 * upgrades.BUFFER_BYTES / KIB,),
    "A connection to an MCP server": (pool.MAX_OF_ONE,),
    "Log lines about refused": (refusals.SOURCE_LINES, refusals.ALL_LINES),
    "A source is an": (refusals._NETWORK_BITS,),
    "After ten wrong keys": (wrong_keys.ATTEMPTS, wrong_keys.SECONDS_PER_ATTEMPT),
    "The arguments of a call": (Limits().max_event_bytes / MIB,),
    "toolsim decodes compressed answers": (Limits().max_event_bytes / MIB, MAX_EVENT_VALUES),
    "A message from a": (stdio.MAX_MESSAGE_BYTES / MIB,),
    "Between two requests": (stdio.MAX_BETWEEN_BYTES / MIB, stdio.MAX_BETWEEN_MESSAGES),
    "An approval can be used": (approvals.MAX_SECONDS / 3600,),
}
"""For each sentence with numbers: the corresponding values in the code, in the same order."""

MEASURED = ("Rewriting a smaller body", "Argument checks block", "The limits of a check")
"""Beginnings of sentences whose times and sizes were measured."""

NUMERALS = {"five": 5, "six": 6, "ten": 10, "sixty": 60, "hour": 1}
NUMBER = re.compile(rf"(?<![\w.])[\d,]*\d\b(?!\.\d)|\b(?:{'|'.join(NUMERALS)})\b")
STATUS = re.compile(r"\b(?:404|429|500|503)\b|127\.0\.0\.1|IPv\d")


def claims() -> dict[str, list[str]]:
    """Return the names of the tests for each sentence, by the beginning of the sentence."""
    found: dict[str, list[str]] = {}
    sentence = ""
    for line in CLAIMS.strip().splitlines():
        if line.startswith("    "):
            found[sentence].append(line.strip())
        elif not line.startswith("# "):
            sentence = line
            found[sentence] = []
    return found


def sentences() -> list[str]:
    """Return the sentences in the page's two sections of claims."""
    text = PAGE.split("## Not trusted")[1].split("## How this")[0]
    found: list[str] = []
    for block in re.split(r"\n\n|\n(?=- )", text):
        words = " ".join(block.split()).removeprefix("- ")
        if words and not words.startswith("##"):
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*]|toolsim\b)", words)
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text() if path.exists() else "")
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_each_sentence_has_its_tests() -> None:
    """Each sentence in the page's two sections of claims is in ``claims()`` or ``EXPLAINS``, and each entry in these
    tables belongs to a sentence.
    """
    known = [*claims(), *EXPLAINS]
    unknown = [each for each in sentences() if not any(map(each.startswith, known))]
    assert unknown == []
    assert [each for each in known if not any(sentence.startswith(each) for sentence in sentences())] == []


def test_each_named_test_exists() -> None:
    """Each test that is listed for a sentence exists in its file."""
    assert all(claims().values())
    named = {each for tests in claims().values() for each in tests}
    assert sorted(each for each in named if each.split("::")[1] not in functions_of(each.split("::")[0])) == []


def numbers_of(sentence: str) -> tuple[float, ...]:
    """Return the numbers in a sentence, except those in inline code, IP addresses and HTTP status codes."""
    found = NUMBER.findall(STATUS.sub("", re.sub(r"`[^`]*`", "", sentence)))
    return tuple(NUMERALS[word] if word in NUMERALS else int(word.replace(",", "")) for word in found)


def test_each_number_equals_the_value_in_the_code() -> None:
    """Each number in a claim equals the value in the code."""
    found = {}
    for sentence in sentences():
        if (numbers := numbers_of(sentence)) and not sentence.startswith(MEASURED):
            found[next((start for start in NUMBERS if sentence.startswith(start)), sentence)] = numbers
    assert found == NUMBERS
    assert checker.BUDGET_SECONDS + checker._STRICT_SECONDS == 0.04
