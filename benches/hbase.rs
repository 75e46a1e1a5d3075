//! Acquire and release of fresh locks on a real HBase, directly and through the gateway. The same run also measures
//! HBase's Java client with the calls of the Java library.
//!
//! `cargo bench --bench hbase --features gateway` starts its own server, which needs a JDK and Maven. The run takes
//! about five minutes. With `-- --test` it takes a few seconds per peer, which only proves that it runs. The peers
//! take turns within each round, and the figures are medians over the rounds.

mod peers;
use std::time::Duration;

use peers::hbase::Server;
use peers::{Figures, JavaClient, Local, Peer, THREADS};

fn main() {
    let quick = std::env::args().any(|arg| arg == "--test");
    let (rounds, time) = if quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(2)) };
    let server = Server::start();
    let native = format!("hbase://{}/bench?client=bench", server.master);
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Local::open("direct, fenced (default)", &native)),
        Box::new(Local::open("direct, fence=off", &format!("{native}&fence=off"))),
        Box::new(Local::open(
            "direct, layout=own",
            &format!("hbase://{}/bench_own?client=bench&layout=own", server.master),
        )),
        Box::new(Local::open(
            "gateway, fenced",
            &format!("hbase+thrift://{}/bench?client=bench", server.thrift),
        )),
        Box::new(java_client(&server, "bench_java")),
    ];
    // A server compiles its code while it runs. In the first half minute under load it is half as fast.
    let warm_up = if quick { 0 } else { 5 };
    for _ in 0..warm_up {
        for peer in &mut peers {
            peer.cycles(16, time);
        }
    }
    println!("acquire + release of fresh locks; medians of {rounds} rounds of {time:?}");
    for threads in THREADS {
        let figures = peers::take_turns(peers.len(), rounds, |turn| peers[turn].cycles(threads, time));
        let java = Figures::medians(&figures[peers.len() - 1]);
        peers::print(threads, &peers, &figures, 0, "pairs/s, p50, CPU vs Java", |rounds| {
            let seen = Figures::medians(rounds);
            format!(
                "{:.2} {:.2} {:.2}",
                seen.per_s / java.per_s,
                seen.p50_us / java.p50_us,
                seen.client_cpu_us / java.client_cpu_us,
            )
        });
    }
}

/// Starts HBase's Java client with a new table.
fn java_client(server: &Server, table: &'static str) -> JavaClient {
    let mut java = server.java();
    assert_eq!(java.ask(&format!("create {table}")), "ok");
    JavaClient { java, place: table }
}
