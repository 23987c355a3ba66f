//! The first process of sandboxes, for tests and for programs that use this crate as a library.

fn main() -> std::process::ExitCode {
    tenure_sandbox::agent_main();
    std::process::ExitCode::FAILURE
}
