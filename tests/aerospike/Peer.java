import com.aerospike.client.AerospikeClient;
import com.aerospike.client.AerospikeException;
import com.aerospike.client.Bin;
import com.aerospike.client.Key;
import com.aerospike.client.Operation;
import com.aerospike.client.Record;
import com.aerospike.client.ResultCode;
import com.aerospike.client.policy.CommitLevel;
import com.aerospike.client.policy.GenerationPolicy;
import com.aerospike.client.policy.RecordExistsAction;
import com.aerospike.client.policy.WritePolicy;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Aerospike's own Java client, driven by lines on standard input: what a Java service does to locks and
 * latches, call by call as DLM 1.0.1 and DistributedLatch 1.0.0-2 make them. Each command is answered by
 * one line; "error ..." when it failed. Names have no spaces.
 *
 * Usage: java Peer HOST PORT NAMESPACE
 */
public class Peer {
    private final AerospikeClient client;
    private final String namespace;
    private final AtomicLong ids = new AtomicLong();

    public static void main(String[] args) throws Exception {
        try (AerospikeClient client = new AerospikeClient(args[0], Integer.parseInt(args[1]))) {
            Peer peer = new Peer(client, args[2]);
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            System.out.println("ready");
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(peer.answer(line.trim().split(" ")));
            }
        }
    }

    private Peer(AerospikeClient client, String namespace) {
        this.client = client;
        this.namespace = namespace;
    }

    private String answer(String[] words) {
        try {
            return switch (words[0]) {
                case "acquire" -> acquire(words[1], words[2], words[3], Integer.parseInt(words[4]));
                case "release" -> release(words[1], words[2]);
                case "create" -> create(words[1], words[2], words[3], Long.parseLong(words[4]), Integer.parseInt(words[5]));
                case "add" -> add(words[1], words[2], words[3], Long.parseLong(words[4]), Integer.parseInt(words[5]));
                case "count" -> count(words[1], words[2], words[3]);
                case "sum" -> sum(words[1], words[2]);
                case "lock" -> lock(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                default -> "error unknown command " + words[0];
            };
        } catch (Exception e) {
            return "error " + e.toString().replace('\n', ' ');
        }
    }

    private String acquire(String set, String key, String farm, int ttlSeconds) {
        WritePolicy policy = new WritePolicy(client.getWritePolicyDefault());
        policy.generationPolicy = GenerationPolicy.EXPECT_GEN_EQUAL;
        policy.generation = 0;
        policy.expiration = ttlSeconds;
        policy.commitLevel = CommitLevel.COMMIT_MASTER;
        try {
            client.put(policy, new Key(namespace, set, key), new Bin(farm + "##data", 1),
                new Bin(farm + "##uat", System.currentTimeMillis()));
            return "acquired";
        } catch (AerospikeException e) {
            if (e.getResultCode() == ResultCode.GENERATION_ERROR) {
                return "unavailable";
            }
            throw e;
        }
    }

    /** Whoever's it is by now. */
    private String release(String set, String key) {
        return client.delete(client.getWritePolicyDefault(), new Key(namespace, set, key)) ? "released" : "missing";
    }

    private String create(String set, String key, String bin, long count, int ttlSeconds) {
        WritePolicy policy = new WritePolicy(client.getWritePolicyDefault());
        policy.recordExistsAction = RecordExistsAction.CREATE_ONLY;
        policy.expiration = ttlSeconds;
        client.put(policy, new Key(namespace, set, key), new Bin(bin, count));
        return "ok";
    }

    private String add(String set, String key, String bin, long number, int ttlSeconds) {
        WritePolicy policy = new WritePolicy(client.getWritePolicyDefault());
        policy.recordExistsAction = RecordExistsAction.UPDATE_ONLY;
        policy.expiration = ttlSeconds;
        client.operate(policy, new Key(namespace, set, key), Operation.add(new Bin(bin, number)));
        return "ok";
    }

    private String count(String set, String key, String bin) {
        return Long.toString(client.get(client.getReadPolicyDefault(), new Key(namespace, set, key)).getLong(bin));
    }

    private String sum(String set, String key) {
        Record record = client.get(client.getReadPolicyDefault(), new Key(namespace, set, key));
        return Long.toString(record.bins.keySet().stream().filter(bin -> bin.contains("count#"))
            .map(record::getLong).reduce(Long::sum).orElse(0L));
    }

    /** Acquires and releases fresh locks: "pairs/s p50_us p99_us cpu_us_per_pair". */
    private String lock(String set, int threads, long millis) throws Exception {
        long[][] waits = new long[threads][];
        long cpu = cpuNanos();
        long begin = System.nanoTime();
        List<Thread> workers = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            int self = number;
            Thread worker = new Thread(() -> waits[self] = cycles(set, begin + millis * 1_000_000));
            workers.add(worker);
            worker.start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        double used = (cpuNanos() - cpu) / 1e3;
        long[] all = Arrays.stream(waits).flatMapToLong(Arrays::stream).sorted().toArray();
        return String.format("%.1f %.1f %.1f %.1f", all.length / seconds, all[all.length / 2] / 1e3,
            all[all.length * 99 / 100] / 1e3, used / all.length);
    }

    private long[] cycles(String set, long end) {
        List<Long> waits = new ArrayList<>();
        while (System.nanoTime() < end) {
            String key = "bench#java-" + ids.incrementAndGet();
            long before = System.nanoTime();
            if (!acquire(set, key, "dc1", 90).equals("acquired")) {
                throw new IllegalStateException("a fresh lock is not free");
            }
            waits.add(System.nanoTime() - before);
            release(set, key);
        }
        return waits.stream().mapToLong(Long::longValue).toArray();
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }
}
