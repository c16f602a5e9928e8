"""The claims of addon/docs/security.md: each sentence with the tests that prove it.

The tests are named by file (below ``tests/``) and function, and are run there. This file checks that no named test is
missing, that no claim lacks a test, and that each number equals the code's.
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
Without the key, if one is set
    attack/test_attack.py::test_attack
    proxy/test_access.py::test_every_request_needs_the_key
A client cannot learn the key
    attack/test_attack.py::test_attack
    proxy/test_access.py::test_every_request_needs_the_key
A client's `Authorization`
    proxy/test_access.py::test_proxy_header_leaves_clients_other_key
Clients that use the listener as their proxy
    proxy/test_access.py::test_forwarding_requires_the_key
It is a Bearer token or
    proxy/test_access.py::test_forwarding_requires_the_key
Only `socks5` and the modes
    unit/proxy/test_access.py::test_the_key_of_the_proxy_opens_only_what_goes_through_it
    unit/proxy/test_incoming.py::test_which_way_a_flow_came
There, only requests that `toolsim_upstream` redirects
    unit/proxy/test_access.py::test_the_key_of_the_proxy_opens_only_what_goes_through_it
    unit/proxy/test_incoming.py::test_which_way_a_flow_came
A listener with a built-in backend
    unit/proxy/test_access.py::test_forward
    unit/proxy/test_access.py::test_forward_with_a_file_of_backends
    proxy/test_access.py::test_builtin_backend_does_not_forward
    proxy/test_access.py::test_upstream_option_forwards_other_traffic
So no client can reach other
    unit/proxy/test_access.py::test_forward
    unit/proxy/test_access.py::test_forward_with_a_file_of_backends
    proxy/test_access.py::test_builtin_backend_does_not_forward
    proxy/test_access.py::test_upstream_option_forwards_other_traffic
In front of your own backend
    proxy/test_access.py::test_only_the_backend_is_reachable
Large bodies (above 32 KiB
    unit/proxy/test_jobs.py::test_what_is_heavy
    unit/proxy/test_worker.py::test_what_is_done_elsewhere
    unit/proxy/test_worker.py::test_serving
    unit/proxy/test_worker.py::test_empty_lists_take_too_much_memory
Smaller ones take at most some
    unit/proxy/test_jobs.py::test_what_is_heavy
    unit/proxy/test_worker.py::test_serving
    unit/proxy/test_worker.py::test_empty_lists_take_too_much_memory
Clients take turns
    unit/proxy/test_worker.py::test_owners_take_turns
    unit/core/test_serial_executor.py::test_owners_take_turns
Schemas and patterns are measured
    unit/schema/test_patterns.py::test_a_pattern_that_would_take_all_memory_is_never_compiled
    unit/schema/test_budget.py::test_no_step_is_long
Requests (`toolsim_max_body_bytes`)
    unit/proxy/test_decoding.py::test_bombs
    unit/response/test_checker.py::test_a_schema_beyond_the_limit_checks_nothing
    unit/proxy/test_exchange.py::test_request_that_was_dropped_as_it_arrived
    unit/request/test_transcript.py::test_too_large_outputs_are_replaced
JSON is parsed to a depth
    unit/wire/test_json_codec.py::test_the_bound_on_depth
    unit/proxy/test_worker.py::test_a_nested_body_ends_no_worker
    unit/proxy/test_worker.py::test_a_result_that_cannot_be_returned
No body can crash the process
    unit/wire/test_json_codec.py::test_the_bound_on_depth
    unit/proxy/test_worker.py::test_a_nested_body_ends_no_worker
    unit/proxy/test_worker.py::test_a_result_that_cannot_be_returned
A schema's references
    unit/schema/test_compile.py::test_nothing_is_fetched
Each connection can send messages
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_server.py::test_a_connection_that_nobody_uses
It has at most 64 requests
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_connection.py::test_a_flood_costs_the_flooder_only
    unit/sockets/test_connection.py::test_lanes_are_answered_side_by_side
It is closed after 10 minutes
    proxy/test_websocket.py::test_oversized_and_binary_data
    unit/sockets/test_server.py::test_a_connection_that_nobody_uses
A key can have at most 128
    proxy/test_websocket.py::test_connections_per_key_are_limited
A large message is parsed
    unit/sockets/test_server.py::test_a_large_message_is_read_elsewhere
All connections together
    unit/core/test_fair_cache.py::test_the_largest_share_gives_way
A client that exceeds a limit
    unit/sockets/test_connection.py::test_a_flood_costs_the_flooder_only
The upgrade is checked
    proxy/test_websocket.py::test_upgrade_requires_the_key
    proxy/test_websocket.py::test_unlisted_page_is_refused
Frames are read in slices
    unit/sockets/test_websocket.py::test_others_get_their_turn_between_frames
    unit/sockets/test_connection.py::test_a_part_of_many_events_is_sent_in_slices
A connection can send 2,000
    unit/sockets/test_websocket.py::test_the_cost_of_a_frame
    unit/sockets/test_websocket.py::test_the_rates_are_those_of_the_page
    unit/sockets/test_server.py::test_an_unreadable_message_counts_ten_times
A message that cannot be parsed
    unit/sockets/test_websocket.py::test_the_cost_of_a_frame
    unit/sockets/test_websocket.py::test_the_rates_are_those_of_the_page
    unit/sockets/test_server.py::test_an_unreadable_message_counts_ten_times
Frames of 1 KiB
    unit/sockets/test_websocket.py::test_a_large_message_in_many_frames
A connection that sends more
    unit/sockets/test_websocket.py::test_a_flood_closes_its_connection
If 1 MiB of answers is buffered
    proxy/test_websocket.py::test_unread_data_is_bounded_per_connection
    unit/sockets/test_requests.py::test_unread_bytes_pause_every_backend_of_a_connection
    unit/sockets/test_websocket.py::test_messages_wait_for_a_client_that_does_not_read
If 1 MiB of errors is buffered
    unit/sockets/test_connection.py::test_a_client_that_reads_no_errors
    unit/sockets/test_connection.py::test_the_size_of_unread_errors
    unit/sockets/test_server.py::test_a_client_that_reads_only_once_all_is_sent
Each running answer adds at most
    proxy/test_websocket.py::test_unread_data_is_bounded_per_connection
    unit/sockets/test_requests.py::test_unread_bytes_pause_every_backend_of_a_connection
    unit/sockets/test_websocket.py::test_messages_wait_for_a_client_that_does_not_read
The kernel buffers at most
    unit/sockets/test_server.py::test_the_kernel_buffers_little
A client cannot read another client's stored
    unit/proxy/test_access.py::test_owners_differ_and_hide_the_key
    unit/stores/test_record.py::test_it_holds_what_a_plain_model_holds
Each key has its own partition
    unit/proxy/test_access.py::test_owners_differ_and_hide_the_key
    unit/stores/test_record.py::test_it_holds_what_a_plain_model_holds
Answers that continue without their client
    unit/background/test_slots.py::test_half_for_each_of_two
    unit/background/test_endpoints.py::test_one_more_than_allowed
The store has limits
    unit/stores/test_record.py::test_who_fills_the_store_loses_his_own
    unit/mcp/test_approvals.py::test_nobody_pushes_out_another_clients
    unit/rounds/test_hidden_calls.py::test_nobody_pushes_out_another_clients
The same rule applies to calls
    unit/mcp/test_approvals.py::test_nobody_pushes_out_another_clients
    unit/rounds/test_hidden_calls.py::test_nobody_pushes_out_another_clients
Writes to a SQLite store take turns
    unit/stores/test_sqlite.py::test_a_large_write_holds_up_no_small_one
    unit/core/test_serial_executor.py::test_whoever_fills_the_queue_gives_way
A connection to an MCP server is never closed
    unit/mcp/test_pool.py::test_one_client_has_so_many
    unit/mcp/test_fair_lock.py::test_answers_take_turns
Answers take turns with a local
    unit/mcp/test_pool.py::test_one_client_has_so_many
    unit/mcp/test_fair_lock.py::test_answers_take_turns
Damaged data results in a 404
    unit/wire/responses/test_stored.py::test_a_damaged_record_is_not_found
    unit/proxy/test_response_store.py::test_a_store_that_lies
`chmod 600` protects the file
    unit/proxy/options/test_api_keys.py::test_a_file_that_others_can_read
The file is reloaded
    proxy/test_users.py::test_user_removed_while_serving
    unit/proxy/options/test_api_keys.py::test_a_new_version
A user who is removed
    proxy/test_users.py::test_user_removed_while_serving
    proxy/test_users.py::test_removed_user_is_refused_by_forward_proxy
A file that is missing
    proxy/test_users.py::test_missing_or_broken_file_stops_the_start
    unit/proxy/options/test_api_keys.py::test_mistakes
An invalid new version
    proxy/test_users.py::test_user_removed_while_serving
    unit/proxy/options/test_api_keys.py::test_a_new_version
The name is the owner
    proxy/test_users.py::test_user_is_in_log_and_metrics
The name is in the log
    proxy/test_users.py::test_user_is_in_log_and_metrics
Every user of the proxy
    proxy/test_users.py::test_user_is_in_log_and_metrics
`concurrent` limits
    proxy/test_users.py::test_concurrent_turns_are_limited
    proxy/test_users.py::test_turns_per_minute_are_limited
That many turns can start
    unit/proxy/test_user_limits.py::test_turns_per_minute
A turn beyond a limit
    proxy/test_users.py::test_concurrent_turns_are_limited
A turn is a request to a model
    proxy/test_users.py::test_turns_per_minute_are_limited
A background answer counts
    proxy/test_users.py::test_background_answer_is_a_turn_until_it_ends
Token counts and model lists
    proxy/test_users.py::test_turns_per_minute_are_limited
A source that sends ten wrong keys
    proxy/test_users.py::test_wrong_keys_are_throttled
    unit/proxy/test_wrong_keys.py::test_a_source_that_tries_keys
Users who have already been served
    proxy/test_users.py::test_wrong_keys_are_throttled
    unit/proxy/test_wrong_keys.py::test_a_source_that_tries_keys
With a single key
    unit/proxy/options/test_api_keys.py::test_one_key
    unit/proxy/test_user_limits.py::test_without_limits
A connection that returns
    attack/test_attack.py::test_proxy_as_its_own_upstream_is_a_loop
    unit/proxy/test_loop_detection.py::test_a_request_that_comes_back
A loop through other proxies
    attack/test_attack.py::test_loop_of_two_proxies_fails_with_508
The built-in backend answers only
    unit/backends/test_loopback.py::test_only_the_addon_is_answered
# A model
It cannot call a tool that is not on offer, is masked
    unit/response/test_masked_calls.py::test_a_masked_call_never_passes
    unit/response/test_judge.py::test_table
Such text stays text, or is
    unit/response/test_masked_calls.py::test_a_masked_call_never_passes
    unit/response/test_judge.py::test_table
It cannot make more calls than allowed
    unit/response/test_choice.py::test_a_call_beyond_the_cap_ends_the_turn_where_it_begins
    unit/response/test_judge.py::test_more_calls_than_a_block_may_hold
It cannot pass arguments to a strict tool
    unit/response/test_judge.py::test_table
    unit/response/test_answer.py::test_a_strict_failure_cuts_the_backend
Arguments that cannot be checked in time
    unit/response/test_checker.py::test_what_cannot_be_settled_is_nothing_that_conforms
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
The limits are 40 ms in
    unit/response/test_checker.py::test_what_cannot_be_settled_is_nothing_that_conforms
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
For a tool that is not
    unit/response/test_checker.py::test_what_cannot_be_settled_is_nothing_that_conforms
    unit/response/test_judge.py::test_catastrophic_patterns_share_one_budget
Its text is rewritten in slices
    unit/proxy/test_streamed.py::test_others_continue_between_slices
    unit/proxy/test_streamed_slices.py::test_pieces_of_one_work_share_a_slice
    unit/response/test_judge.py::test_arguments_over_the_limit
    unit/proxy/test_streamed.py::test_an_answer_beyond_the_limit
The arguments of a call, an
    unit/proxy/test_streamed.py::test_others_continue_between_slices
    unit/proxy/test_streamed_slices.py::test_pieces_of_one_work_share_a_slice
    unit/response/test_judge.py::test_arguments_over_the_limit
    unit/proxy/test_streamed.py::test_an_answer_beyond_the_limit
# A tool's output
On the way to the model
    unit/request/test_record.py::test_output_record
    unit/request/test_rewrite.py::test_text_is_unchanged
Only text that the model itself writes
    unit/request/test_record.py::test_output_record
    unit/request/test_rewrite.py::test_text_is_unchanged
Text cannot forge the record
    unit/request/test_record.py::test_no_line_of_a_user_is_a_record
    unit/request/test_record.py::test_characters_that_nobody_sees
An output is written as JSON
    unit/request/test_record.py::test_no_line_of_a_user_is_a_record
    unit/request/test_record.py::test_characters_that_nobody_sees
A backslash marks every line
    unit/request/test_record.py::test_no_line_of_a_user_is_a_record
    unit/request/test_record.py::test_characters_that_nobody_sees
A call that an output of the same request contains
    unit/response/test_quoted_calls.py::test_a_call_from_an_output_is_text
    unit/response/test_quoted_calls.py::test_how_an_output_wraps_a_call
It stays text, with the warning
    unit/response/test_quoted_calls.py::test_a_call_from_an_output_is_text
    unit/response/test_quoted_calls.py::test_how_an_output_wraps_a_call
`toolsim_untagged=all` turns
    unit/response/test_quoted_calls.py::test_what_is_not_quoted
Inside inline code
    unit/response/test_quotation.py::test_what_is_shown_is_text
The model may believe what the text says
    unit/response/test_quoted_calls.py::test_what_is_left
With the arguments in another order
    unit/response/test_quoted_calls.py::test_what_is_left
A call in a user's message
    unit/response/test_quoted_calls.py::test_what_is_left
A call that the conversation already contains
    unit/response/test_quoted_calls.py::test_what_is_left
Outputs that only the backend stores
    unit/response/test_quoted_calls.py::test_what_is_left_to_backends
Calls that the backend itself emits
    unit/response/test_quoted_calls.py::test_what_is_left_to_backends
`toolsim_untagged=no_use_tool`
    unit/response/test_quoted_calls.py::test_what_closes_it
`toolsim_tool_allowlist=!NAME`
    unit/response/test_masked_calls.py::test_a_masked_call_never_passes
    unit/request/test_rewrite.py::test_choice_none
# A backend
It cannot call a tool that is not on offer by
    unit/response/test_toolbox.py::test_calls_of_a_backend
    unit/response/test_choice.py::test_a_refused_structured_call_is_said_in_words
The client gets it as text
    unit/response/test_toolbox.py::test_calls_of_a_backend
    unit/response/test_choice.py::test_a_refused_structured_call_is_said_in_words
In chat completions, it is dropped
    unit/response/test_toolbox.py::test_calls_of_a_backend
    unit/response/test_choice.py::test_a_refused_structured_call_is_said_in_words
Calls with malformed or oversized
    unit/response/test_masked_calls.py::test_a_broken_call_is_readable
A tool that was never declared
    unit/response/test_masked_calls.py::test_an_undeclared_call
An answer to a request without tools
    unit/request/test_rewrite.py::test_not_ours
    unit/request/test_rewrite.py::test_no_tools_over_the_other_dialect
It cannot make a truncated answer look complete
    attack/test_cuts.py::test_backend_disconnects_after_any_byte
    unit/response/test_rewrite.py::test_a_stream_without_its_terminator_fails
    unit/response/test_rewrite.py::test_a_chat_stream_that_breaks_off_after_a_call_keeps_it
    unit/response/test_answer.py::test_a_failure_after_a_call_is_warned_of
    unit/response/test_answer.py::test_a_failure_after_a_call_of_a_list_of_items
An answer that ends before its
    attack/test_cuts.py::test_backend_disconnects_after_any_byte
    unit/response/test_rewrite.py::test_a_stream_without_its_terminator_fails
    unit/response/test_rewrite.py::test_a_chat_stream_that_breaks_off_after_a_call_keeps_it
    unit/response/test_answer.py::test_a_failure_after_a_call_is_warned_of
    unit/response/test_answer.py::test_a_failure_after_a_call_of_a_list_of_items
There is one exception: complete calls
    unit/response/test_rewrite.py::test_a_chat_stream_that_breaks_off_after_a_call_keeps_it
    unit/response/test_answer.py::test_a_failure_after_a_call_of_a_list_of_items
The log reports this as `FAILED_AFTER_CALLS`
    unit/response/test_answer.py::test_a_failure_after_a_call_is_warned_of
It cannot keep a client waiting forever
    unit/proxy/test_streamed.py::test_silence
    unit/proxy/mitmproxy12/test_connect.py::test_a_connection_that_takes_too_long
Compressed answers are decoded
    unit/proxy/test_decoding.py::test_bombs
    unit/wire/test_sse.py::test_an_event_without_end_is_cut_off
    unit/wire/test_sse.py::test_an_event_of_too_many_values_fails
# An MCP server
All of it is text for the model
    proxy/test_mcp.py::test_forged_records_are_text
A description can request calls
    unit/mcp/test_server_config.py::test_what_is_not_said_needs_a_yes
Commands come only from the file
    unit/mcp/test_server_config.py::test_what_a_request_may_not
A server with the key
    proxy/test_searches.py::test_web_search_over_both_apis
A request's `server_url`
    unit/rounds/test_searches.py::test_a_host_that_is_not_allowed
    unit/mcp/test_server_config.py::test_what_a_request_may_not
    unit/mcp/test_web.py::test_no_other_place_is_asked
    unit/proxy/test_mcp_servers.py::test_nobody_is_asked_by_default
Redirects are followed only within
    unit/rounds/test_searches.py::test_a_host_that_is_not_allowed
    unit/mcp/test_server_config.py::test_what_a_request_may_not
    unit/mcp/test_web.py::test_no_other_place_is_asked
    unit/proxy/test_mcp_servers.py::test_nobody_is_asked_by_default
It gets its own headers
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
It gets no key of the
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
With [traces](inspect.md#traces) it gets
    unit/otel/test_conventions.py::test_calls
Tool names include the server's label
    unit/mcp/test_catalog.py::test_no_name_is_taken_twice
It cannot forge a call
    proxy/test_mcp.py::test_forged_records_are_text
One message has at most 1 MiB
    unit/mcp/test_web.py::test_an_answer_is_bounded
    unit/mcp/test_web.py::test_what_is_compressed_is_not_read
    unit/mcp/test_stdio.py::test_a_server_that_goes_on_and_on_is_counted
Between two requests it can send
    unit/mcp/test_web.py::test_an_answer_is_bounded
    unit/mcp/test_web.py::test_what_is_compressed_is_not_read
    unit/mcp/test_stdio.py::test_a_server_that_goes_on_and_on_is_counted
A compressed answer over HTTP is
    unit/mcp/test_web.py::test_an_answer_is_bounded
    unit/mcp/test_web.py::test_what_is_compressed_is_not_read
    unit/mcp/test_stdio.py::test_a_server_that_goes_on_and_on_is_counted
A call has a time limit
    unit/mcp/test_connection.py::test_waiting_for_a_turn_has_an_end
    unit/mcp/test_outcome.py::test_errors_are_told
    unit/rounds/test_hosted_calls.py::test_calls_that_ask_are_counted
    unit/rounds/test_round_planner.py::test_the_bounds_hold
A server's failure becomes the output
    unit/rounds/test_hosted_calls.py::test_a_failure_is_told_to_the_model
A local server is stopped
    proxy/test_mcp.py::test_servers_end_with_the_proxy
On Linux, that includes children
    proxy/test_mcp.py::test_orphaned_children_end_with_the_proxy
    unit/mcp/test_stdio.py::test_a_server_ends_with_its_children
On macOS, such children survive
    proxy/test_mcp.py::test_orphaned_children_end_with_the_proxy
    unit/mcp/test_stdio.py::test_a_server_ends_with_its_children
Its secrets do not leak
    proxy/test_mcp.py::test_no_secret_is_left_in_log_or_recording
    unit/mcp/test_connection.py::test_secrets_are_in_no_message
    unit/otel/test_conventions.py::test_calls
An approval is for one call
    unit/mcp/test_approvals.py::test_what_was_asked_is_what_is_approved
    proxy/test_mcp.py::test_approval_is_for_one_call
It is valid once
    unit/mcp/test_approvals.py::test_nobody_else_approves
    unit/mcp/test_approvals.py::test_they_do_not_wait_for_ever
    unit/rounds/test_hosted_calls.py::test_a_decision_that_is_sent_twice_counts_once
Approvals do not survive
    unit/mcp/test_approvals.py::test_nobody_else_approves
    unit/mcp/test_approvals.py::test_they_do_not_wait_for_ever
    unit/rounds/test_hosted_calls.py::test_a_decision_that_is_sent_twice_counts_once
Browser pages whose origin
    proxy/test_mcp.py::test_unlisted_web_page_is_refused
    unit/proxy/test_mcp_servers.py::test_a_web_page_has_to_be_listed
Their requests would run the tools
    proxy/test_mcp.py::test_unlisted_web_page_is_refused
    unit/proxy/test_mcp_servers.py::test_a_web_page_has_to_be_listed
# A bug in toolsim
A bug in toolsim ends only
    faults/test_faults.py::test_function_fails_once
After an exception, no unchecked
    faults/test_faults.py::test_function_fails_once
A request is not sent on
    faults/test_faults.py::test_function_fails_once
The client gets a 500, an error event
    unit/proxy/test_streamed.py::test_an_exception_ends_the_answer
    unit/proxy/test_guard.py::test_the_log_names_the_place
The same is true if another script
    proxy/test_guard.py::test_exception_in_another_script_blocks_traffic
A refused request is logged
    proxy/test_refusals.py::test_wrong_keys_are_logged
    proxy/test_refusals.py::test_foreign_hosts_and_pages_are_logged
    proxy/test_refusals.py::test_refused_tunnels_are_logged
    proxy/test_refusals.py::test_loops_are_logged
Log lines are limited
    unit/proxy/test_refusals.py::test_a_source_has_few_lines
    unit/proxy/test_refusals.py::test_all_sources_have_few_lines_together
A source is an address
    unit/proxy/test_refusals.py::test_a_source_is_an_address_or_a_network
A key identifies the same owner
    unit/proxy/test_access.py::test_all_spellings_of_a_key_are_one_owner
With `toolsim_api_key`, the owner
    unit/proxy/test_access.py::test_the_owner_is_the_accepted_key
This also applies to clients that send it
    unit/proxy/test_access.py::test_the_owner_is_the_accepted_key
Otherwise, if a request has several keys
    unit/proxy/test_access.py::test_the_own_header_comes_first
# A web page
Pages served from `localhost`
    unit/proxy/test_access.py::test_pages
    unit/proxy/test_access.py::test_pages_by_default
    unit/proxy/test_access.py::test_pages_do_not_have_the_key
Without a key, a page whose origin
    proxy/test_access.py::test_unlisted_origin_is_refused
The only exception is a page
    proxy/test_access.py::test_page_of_the_listener_can_call_it
A page whose own host name
    proxy/test_access.py::test_rebound_host_name_is_refused
    unit/proxy/test_access.py::test_foreign_name
The Host header must be
    proxy/test_access.py::test_rebound_host_name_is_refused
    unit/proxy/test_access.py::test_foreign_name
The names by which containers reach
    unit/proxy/test_access.py::test_known_name
`/toolsim/health` and
    unit/proxy/test_route.py::test_where_a_request_goes
`/api/hello`, which Claude Code requests at
    unit/proxy/test_route.py::test_where_a_request_goes
In that case, set `toolsim_api_key`
    proxy/test_access.py::test_codex_on_all_interfaces_serves_this_machine_only
# What is written down
The log, metrics, comments
    proxy/test_telemetry.py::test_each_exchange_is_reported_once
    unit/response/test_judge.py::test_a_name_made_up_is_not_logged
Captures (`toolsim_capture`)
    unit/recordings/test_redact.py::test_shape
    unit/recordings/test_redact.py::test_secret_in_pieces
    proxy/test_recording.py::test_secrets_are_not_recorded
"""
"""The beginning of each sentence, followed by the tests that prove it."""

EXPLAINS = (
    "Clients without a key",
    "The number of its turns",
    "People who share",
    "`toolsim_api_key=file:keys.txt` names",
    "```text",
    "`printf %s KEY",
    "Behind a load balancer",
    "It can",
    "An output that a client sends as a user's message",
    "MCP tools can wait",
    "If the outcome matters",
    "`read_only` in a filter",
    "learn the arguments",
    "The owner of a host name",
    "A client's own `headers`",
    "Without a key",
    "If you serve toolsim under another name",
    "The key is transmitted",
    "Flows in mitmweb",
    "They belong to",
    "A client can have its requests",
    "A client with many connections",
    "A client that invents many keys",
    "A client cannot send a request in a loop",
    "Set `toolsim_api_key`, or give",
    "A model can write",
    "Text that a tool, a user",
    "A proxy cannot see prompt",
    "These risks remain",
    "Each line is a case",
    "You can reduce them",
    "A backend can answer anything",
    "An MCP server ([from",
    "lie about its tools",
    "do anything that its user account",
    "A local server is a program",
    "It cannot do more",
    "List only hosts",
    "Anyone who can use the proxy",
    "Set `toolsim_api_key` if others",
    "A web page in a browser can send",
    "They reveal only whether",
    "A neighbor can reach",
    "Check them before",
)
"""Sentences that introduce others, describe possibilities, or give advice."""

KIB, MIB = 1024, 1024 * 1024
SLICES = (round(time_slice.SLICE_SECONDS * 1000), round(time_slice.PAUSE_SECONDS * 1000))
UNITS, BURST = websocket.UNITS_PER_SECOND, websocket.UNITS_BURST
NUMBERS: dict[str, tuple[float, ...]] = {
    "Large bodies (above": (LOOP_BYTES / KIB, worker.MAX_SECONDS, worker.GROWTH),
    "Requests (`toolsim_max_body_bytes`)": (MAX_SCHEMA_BYTES / KIB, _MAX_TOOLS_BYTES / MIB),
    "JSON is parsed to a depth": (MAX_DEPTH,),
    "It has at most": (protocol.MAX_WAITING, protocol.MAX_RUNNING),
    "It is closed after": (server.SILENT_SECONDS / 60, server.UNUSED_SECONDS / 3600),
    "A key can have at most": (upgrades.MAX_CONNECTIONS,),
    "All connections together": (server.MEMORY_BYTES / MIB,),
    "Frames are read in slices": SLICES,
    "Its text is rewritten in slices": SLICES,
    "A connection can send": (
        UNITS / websocket.FRAME_UNITS,
        UNITS / websocket.MESSAGE_UNITS,
        BURST / websocket.FRAME_UNITS,
        BURST / websocket.MESSAGE_UNITS,
    ),
    "A message that cannot be parsed": (websocket.UNREADABLE_UNITS / websocket.MESSAGE_UNITS,),
    "Frames of 1 KiB": (websocket.FREE_FRAME_BYTES / KIB,),
    "A connection that sends more is closed": (websocket.POLICY,),
    "If 1 MiB of answers is buffered": (requests.MAX_UNREAD_BYTES / MIB,),
    "If 1 MiB of errors is buffered": (protocol.MAX_UNREAD_ERRORS / MIB, websocket.POLICY),
    "The kernel buffers at most": (2 * upgrades.BUFFER_BYTES / KIB,),
    "A connection to an MCP server": (pool.MAX_OF_ONE,),
    "Log lines are limited": (refusals.SOURCE_LINES, refusals.ALL_LINES),
    "A source is an address": (refusals._NETWORK_BITS,),
    "A source that sends": (wrong_keys.ATTEMPTS, wrong_keys.SECONDS_PER_ATTEMPT),
    "The arguments of a call": (Limits().max_event_bytes / MIB,),
    "Compressed answers": (Limits().max_event_bytes / MIB, MAX_EVENT_VALUES),
    "One message has at most": (stdio.MAX_MESSAGE_BYTES / MIB,),
    "Between two requests": (stdio.MAX_BETWEEN_BYTES / MIB, stdio.MAX_BETWEEN_MESSAGES),
    "It is valid once": (approvals.MAX_SECONDS / 3600,),
}
"""The values in the code for the numbers in a sentence, in order."""

MEASURED = ("Smaller ones take", "Schemas and patterns are measured", "The limits are 40 ms")
"""Sentences with measured times and sizes."""

NUMERALS = {"five": 5, "six": 6, "ten": 10, "sixty": 60, "hour": 1}
NUMBER = re.compile(rf"(?<![\w.])[\d,]*\d\b(?!\.\d)|\b(?:{'|'.join(NUMERALS)})\b")
STATUS = re.compile(r"\b(?:404|429|500|503)\b|127\.0\.0\.1|IPv\d")


def claims() -> dict[str, list[str]]:
    """Return the names of the tests by the beginning of their sentence."""
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
    """Return the sentences of the two sections that make claims."""
    text = PAGE.split("## Not trusted")[1].split("## How this")[0]
    found: list[str] = []
    for block in re.split(r"\n\n|\n(?=- )", text):
        words = " ".join(block.split()).removeprefix("- ")
        if words and not words.startswith("##"):
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", words)
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text() if path.exists() else "")
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_each_sentence_has_its_tests() -> None:
    """Every sentence is in one of the two tables, and the tables contain no other sentences."""
    known = [*claims(), *EXPLAINS]
    unknown = [each for each in sentences() if not any(map(each.startswith, known))]
    assert unknown == []
    assert [each for each in known if not any(sentence.startswith(each) for sentence in sentences())] == []


def test_each_named_test_exists() -> None:
    """Each test in the table exists in its file."""
    assert all(claims().values())
    named = {each for tests in claims().values() for each in tests}
    assert sorted(each for each in named if each.split("::")[1] not in functions_of(each.split("::")[0])) == []


def numbers_of(sentence: str) -> tuple[float, ...]:
    """Return the numbers in a sentence, except numbers in names and HTTP status codes."""
    found = NUMBER.findall(STATUS.sub("", re.sub(r"`[^`]*`", "", sentence)))
    return tuple(NUMERALS[word] if word in NUMERALS else int(word.replace(",", "")) for word in found)


def test_each_number_equals_the_value_in_the_code() -> None:
    """Each number on the page equals the value in the code."""
    found = {}
    for sentence in sentences():
        if (numbers := numbers_of(sentence)) and not sentence.startswith(MEASURED):
            found[next((start for start in NUMBERS if sentence.startswith(start)), sentence)] = numbers
    assert found == NUMBERS
    assert checker.BUDGET_SECONDS + checker._STRICT_SECONDS == 0.04
