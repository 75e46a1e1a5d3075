//! The Python module of the examples, which uses the shared library through ctypes.

use std::process::Command;

use dlm_fixtures::c;
use dlm_testkit::skipped;

/// Also compares the part that docs/event_loops.md shows.
#[test]
fn the_python_example_counts_under_a_lock_and_cancels_waits() {
    let module = c::root().join("examples/python/dlm.py");
    let page = include_str!("../../docs/event_loops.md");
    let shown = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let text = std::fs::read_to_string(&module).unwrap();
    for line in shown.lines() {
        assert!(text.contains(line.trim()), "{line}");
    }
    // asyncio.to_thread() came with 3.9.
    let version = c::run(Command::new("python3").args(["-c", "import asyncio; asyncio.to_thread"]));
    if let Err(failure) = version {
        return skipped("python3", failure);
    }
    let dir = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", dir.path().join("store").display());
    let said = c::run(Command::new("python3").arg(&module).arg(c::library("libdlm.so")).arg(&store)).unwrap();
    let expected = "counted to 20 with rising fences: True\nthe task was cancelled\n\
                    the wait is over: lock \"XDC#python#held\" is held\ntwo readers\npermits [0, 1]\n\
                    released: True and again: False\n";
    assert_eq!(said, expected);
    // C would take the text for "a": another lock. A release begun and cancelled goes on. None takes a thread of Python.
    let program = "import asyncio, sys, threading\n\
        sys.path.insert(0, sys.argv[1])\n\
        import dlm\n\
        async def main():\n\
        \x20   manager = dlm.Manager(sys.argv[2], sys.argv[3] + '?client=python&retry=5ms&timeout=60s')\n\
        \x20   for text in ['a\\0b', '\\0', 'a\\0']:\n\
        \x20       try:\n\
        \x20           await manager.acquire(text)\n\
        \x20       except ValueError as error:\n\
        \x20           print(error)\n\
        \x20   held = await manager.acquire('s', permits=1)\n\
        \x20   for how in [dict(permits=1, wait=0.01), dict(permits=2), dict(permits=0), dict(mode=7)]:\n\
        \x20       try:\n\
        \x20           await manager.acquire('s', **how)\n\
        \x20       except dlm.DlmError as error:\n\
        \x20           print(error.status, end=' ')\n\
        \x20   print(await held.release(), held.permit())\n\
        \x20   for round in range(20):\n\
        \x20       assert await (await manager.acquire('a')).release()\n\
        \x20   lease = await manager.acquire('a')\n\
        \x20   await lease.release()\n\
        \x20   try:\n\
        \x20       lease.guard()\n\
        \x20   except dlm.DlmError as error:\n\
        \x20       print(error.status, error)\n\
        \x20   print('threads of Python:', threading.active_count())\n\
        \x20   lease = await manager.acquire('a')\n\
        \x20   task = asyncio.ensure_future(lease.release())\n\
        \x20   await asyncio.sleep(0)\n\
        \x20   task.cancel()\n\
        \x20   await asyncio.wait([task])\n\
        \x20   assert await (await manager.acquire('a', wait=60)).release()\n\
        \x20   await manager.close()\n\
        asyncio.run(main())\n";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", program]).arg(module.parent().unwrap()).arg(c::library("libdlm.so")).arg(&store);
    let refused = "a text with NUL is not allowed: ";
    let expected = format!(
        "{refused}'a\\x00b'\n{refused}'\\x00'\n{refused}'a\\x00'\n1 11 11 11 True -1\n8 the lease was released\nthreads of Python: 1\n"
    );
    assert_eq!(c::run(&mut python).unwrap(), expected);
    let failed = Command::new("python3").arg(&module).arg(c::library("libdlm.so")).arg("nowhere:").output();
    assert!(
        String::from_utf8_lossy(&failed.unwrap().stderr).contains("DlmError"),
        "an error is an exception"
    );
}
