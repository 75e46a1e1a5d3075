//! The example of a future, in its small runtime.

#[path = "../../examples/async_acquire.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main function")]
mod async_acquire;

#[test]
fn tasks_of_one_thread_take_turns_with_a_lock() {
    let turns = async_acquire::run("memory:").unwrap();
    assert_eq!(turns.len(), 9);
    assert!(turns.is_sorted_by(|one, next| one < next), "{turns:?}");
}
