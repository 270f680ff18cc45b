/* All probes, in the order in which they run. */
#define PROBES(X)                                                                                             \
    /* waits.c */                                                                                             \
    X(free_waits) X(free_waits_for_unrelated_work) X(free_waits_for_peers) X(free_waits_for_green_contexts)    \
    X(synchronise_covers_green_contexts) X(context_event_covers_its_streams)                                  \
    X(alloc_does_not_wait) X(alloc_does_not_wait_for_peers)                                                   \
    X(create_map_access_beside_blocked_work) X(unmap_beside_blocked_work)                                     \
    X(questions_beside_blocked_work) X(event_query_beside_blocked_work)                                       \
    X(host_function_runs_on_own_thread) X(host_function_may_not_call_cuda)                                    \
    X(host_functions_at_once)                                                                                 \
    /* beside.c */                                                                                            \
    X(calls_beside_waits) X(mapping_beside_waiting_free) X(alloc_waits_beside_waiting_free)                   \
    X(events_beside_waits) X(others_beside_waits) X(captures_beside_waits) X(context_event_beside_waits)      \
    /* mapping.c */                                                                                           \
    X(granularity) X(one_handle_at_two_addresses) X(one_set_access_over_many_mappings)                        \
    X(unmap_over_many_mappings) X(unmap_passes_over_a_hole) X(set_access_passes_over_a_hole)                  \
    X(release_while_mapped) X(retain_handle)                                                                  \
    X(copy_of_alloc_between_devices) X(copy_of_vmm_between_devices) X(peer_copy_of_vmm_between_devices)        \
    X(peer_copy_of_rows_of_vmm) X(peer_copy_on_another_device) X(access_for_one_more_device)                  \
    /* aliases.c */                                                                                           \
    X(handles_of_several_sizes) X(stitch_of_handles) X(alias_between_kernels) X(alias_survives_unmap_of_other) \
    X(handle_is_mapped_whole) X(alias_beside_blocked_work) X(unmap_alias_beside_blocked_work)                 \
    X(peer_access_to_alias)                                                                                   \
    /* attributes.c */                                                                                        \
    X(alignment_of_alloc) X(attributes_of_alloc) X(mapping_attributes_of_alloc)                                \
    X(attributes_of_vmm) X(address_range_of_vmm)                                                              \
    X(sync_memops_of_alloc) X(sync_memops_of_vmm) X(tokens_of_vmm) X(ipc_of_vmm_refused)                      \
    X(access_flags_of_alloc)                                                                                  \
    X(dmabuf_of_alloc) X(dmabuf_of_vmm) X(behind_the_end_of_alloc) X(access_of_alloc)                         \
    /* captures.c */                                                                                          \
    X(begin_capture_does_not_wait) X(default_stream_and_capture) X(legacy_stream_breaks_capture)              \
    X(synchronise_in_capture) X(stream_synchronise_in_capture) X(stream_query_in_capture)                     \
    X(stream_calls_beside_capture) X(stream_id_in_capture) X(pool_question_in_capture)                        \
    X(event_query_in_capture)                                                                                 \
    X(event_record_in_capture) X(context_event_in_capture) X(alloc_in_capture) X(free_in_capture)             \
    X(vmm_in_capture)                                                                                         \
    X(event_query_beside_capture) X(relaxed_thread_beside_capture)                                            \
    X(synchronise_beside_capture) X(synchronise_other_device_beside_capture)                                  \
    X(peer_copy_in_capture) X(copy_of_vmm_in_capture)                                                         \
    /* lifetimes.c */                                                                                         \
    X(double_free) X(foreign_context_free) X(free_without_context) X(free_async_of_alloc) X(sticky_error)     \
    X(primary_context_reset_frees_alloc) X(primary_context_reset_keeps_vmm)                                   \
    /* features.c */                                                                                      \
    X(memory_of_malloc) X(wait_values) X(multicast_objects) X(exported_memory_is_held) X(locality_domains) \
    X(sparse_arrays) X(batches) X(checkpoints) X(copy_of_freed_memory) \
    /* prices.c */                                                                                            \
    X(prices)
