import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.CompareOperator;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HRegionLocation;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.CheckAndMutate;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptor;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Delete;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Increment;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.RegionLocator;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.filter.Filter;
import org.apache.hadoop.hbase.filter.FilterList;
import org.apache.hadoop.hbase.filter.SingleColumnValueFilter;
import org.apache.hadoop.hbase.io.compress.Compression;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * HBase's own Java client, driven by lines on standard input: what a Java service does to the tables,
 * and what an administrator does. Each command is answered by one line; "error ..." when it failed.
 *
 * Usage: java Peer ZOOKEEPER_PORT
 */
public class Peer {
    private static final byte[] FAMILY = {'D'};
    private static final byte[] LATCHES = {'C'};
    private static final byte[] QUALIFIER = {'L'};
    private static final byte[] HELD = {'M'};
    private static final byte[] ROWS = {'f'};
    private static final byte[] SMALL = {'a'};
    private static final byte[] LARGE = {'b'};
    private static final byte[] COUNTER = {'n'};
    private static final HexFormat HEX = HexFormat.of();

    private final Connection connection;
    private final AtomicLong ids = new AtomicLong();

    public static void main(String[] args) throws Exception {
        Configuration configuration = HBaseConfiguration.create();
        configuration.set("hbase.zookeeper.quorum", "127.0.0.1");
        configuration.set("hbase.zookeeper.property.clientPort", args[0]);
        try (Connection connection = ConnectionFactory.createConnection(configuration)) {
            Peer peer = new Peer(connection);
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            System.out.println("ready");
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(peer.answer(line.trim().split(" ")));
            }
        }
    }

    private Peer(Connection connection) {
        this.connection = connection;
    }

    private String answer(String[] words) {
        try {
            return switch (words[0]) {
                case "create" -> create(TableName.valueOf(words[1]));
                case "describe" -> describe(TableName.valueOf(words[1]));
                case "servers" -> String.join(" ", servers().stream().map(ServerName::toString).toList());
                case "where" -> where(TableName.valueOf(words[1]), HEX.parseHex(words[2])).toString();
                case "move" -> move(TableName.valueOf(words[1]), HEX.parseHex(words[2]));
                case "split" -> split(TableName.valueOf(words[1]), HEX.parseHex(words[2]));
                case "acquire" -> acquire(words[1], HEX.parseHex(words[2]), Long.parseLong(words[3]));
                case "release" -> release(words[1], HEX.parseHex(words[2]));
                case "latch-init" -> count(words, Long.parseLong(words[4]), Long.parseLong(words[5]));
                case "latch-add" -> count(words, Long.parseLong(words[4]), 0);
                case "latch-dc" -> latchDc(words[1], HEX.parseHex(words[2]), words[3]);
                case "latch-xdc" -> latchXdc(words[1], HEX.parseHex(words[2]));
                case "lock" -> lock(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
                case "create-rows" -> createRows(TableName.valueOf(words[1]));
                case "rows" -> rows(words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
                default -> "error unknown command " + words[0];
            };
        } catch (Exception e) {
            return "error " + e.toString().replace('\n', ' ');
        }
    }

    /** A table for locks as the Java library makes it. */
    private String create(TableName table) throws Exception {
        ColumnFamilyDescriptor family = ColumnFamilyDescriptorBuilder.newBuilder(FAMILY)
            .setCompressionType(Compression.Algorithm.GZ)
            .setMaxVersions(1)
            .build();
        byte[][] splits = new byte[256][];
        for (int prefix = 0; prefix < splits.length; prefix++) {
            splits[prefix] = new byte[] {(byte) prefix};
        }
        try (Admin admin = connection.getAdmin()) {
            admin.createTable(TableDescriptorBuilder.newBuilder(table).setColumnFamily(family).build(), splits);
        }
        return "ok";
    }

    /** All attributes of all families, and all start keys. */
    private String describe(TableName table) throws Exception {
        try (Admin admin = connection.getAdmin(); RegionLocator regions = connection.getRegionLocator(table)) {
            String families = Arrays.stream(admin.getDescriptor(table).getColumnFamilies())
                .map(family -> family.getNameAsString() + family.getValues().entrySet().stream()
                    .map(e -> new String(e.getKey().copyBytes()) + "=" + new String(e.getValue().copyBytes()))
                    .sorted().collect(Collectors.joining(",", "{", "}")))
                .collect(Collectors.joining(" "));
            String starts = Arrays.stream(regions.getStartKeys()).map(HEX::formatHex).collect(Collectors.joining(","));
            return families + " regions=" + regions.getStartKeys().length + " starts=" + starts;
        }
    }

    private List<ServerName> servers() throws Exception {
        try (Admin admin = connection.getAdmin()) {
            return new ArrayList<>(admin.getRegionServers());
        }
    }

    private ServerName where(TableName table, byte[] row) throws Exception {
        try (RegionLocator regions = connection.getRegionLocator(table)) {
            return regions.getRegionLocation(row, true).getServerName();
        }
    }

    /** Moves the row's region to another server. */
    private String move(TableName table, byte[] row) throws Exception {
        try (Admin admin = connection.getAdmin(); RegionLocator regions = connection.getRegionLocator(table)) {
            HRegionLocation now = regions.getRegionLocation(row, true);
            for (ServerName server : servers()) {
                if (!server.equals(now.getServerName())) {
                    admin.move(now.getRegion().getEncodedNameAsBytes(), server);
                    return server.toString();
                }
            }
            return "error there is one server only";
        }
    }

    /** Splits the region at the row, which becomes the first of the second half, and waits for it. */
    private String split(TableName table, byte[] at) throws Exception {
        try (Admin admin = connection.getAdmin(); RegionLocator regions = connection.getRegionLocator(table)) {
            byte[] region = regions.getRegionLocation(at, true).getRegion().getRegionName();
            admin.splitRegionAsync(region, at).get();
            return "ok";
        }
    }

    /** The calls of the Java library, its timestamp of the client included. */
    private String acquire(String table, byte[] row, long ttlMs) throws Exception {
        try (Table rows = connection.getTable(TableName.valueOf(table))) {
            Put put = new Put(row, System.currentTimeMillis()).addColumn(FAMILY, QUALIFIER, HELD);
            put.setTTL(ttlMs);
            CheckAndMutate take = CheckAndMutate.newBuilder(row).ifNotExists(FAMILY, QUALIFIER).build(put);
            return rows.checkAndMutate(take).isSuccess() ? "acquired" : "unavailable";
        }
    }

    private String release(String table, byte[] row) throws Exception {
        try (Table rows = connection.getTable(TableName.valueOf(table))) {
            rows.delete(new Delete(row));
            return "ok";
        }
    }

    /** The calls of the Java library for latches: an Increment, with a TTL in seconds when it is made. */
    private String count(String[] words, long add, long ttlSeconds) throws Exception {
        try (Table rows = connection.getTable(TableName.valueOf(words[1]))) {
            Increment increment = new Increment(HEX.parseHex(words[2]))
                .addColumn(LATCHES, Bytes.toBytes("count_" + words[3]), add);
            if (ttlSeconds > 0) {
                increment.setTTL(ttlSeconds * 1000L);
            }
            rows.increment(increment);
            return "ok";
        }
    }

    private String latchDc(String table, byte[] row, String farm) throws Exception {
        try (Table rows = connection.getTable(TableName.valueOf(table))) {
            byte[] column = Bytes.toBytes("count_" + farm);
            return "" + Bytes.toLong(rows.get(new Get(row).addColumn(LATCHES, column)).getValue(LATCHES, column));
        }
    }

    private String latchXdc(String table, byte[] row) throws Exception {
        try (Table rows = connection.getTable(TableName.valueOf(table))) {
            return "" + rows.get(new Get(row).addFamily(LATCHES)).getFamilyMap(LATCHES).values().stream()
                .mapToLong(Bytes::toLong).sum();
        }
    }

    /** Acquires and releases fresh locks, and measures how long the acquires take: see measure. */
    private String lock(String table, int threads, long millis) throws Exception {
        return measure(threads, millis, number -> () -> {
            byte[] key = ("XDC#bench#java-" + ids.incrementAndGet()).getBytes(StandardCharsets.UTF_8);
            byte[] row = salted(key);
            long before = System.nanoTime();
            acquire(table, row, Duration.ofSeconds(90).toMillis());
            long wait = System.nanoTime() - before;
            release(table, row);
            return wait;
        });
    }

    /** A table for rows: one family, one version, 16 regions by the first hexadecimal digit of the key. */
    private String createRows(TableName table) throws Exception {
        ColumnFamilyDescriptor family = ColumnFamilyDescriptorBuilder.newBuilder(ROWS).setMaxVersions(1).build();
        byte[][] splits = new byte[15][];
        for (int digit = 1; digit < 16; digit++) {
            splits[digit - 1] = Bytes.toBytes(Integer.toHexString(digit));
        }
        try (Admin admin = connection.getAdmin()) {
            admin.createTable(TableDescriptorBuilder.newBuilder(table).setColumnFamily(family).build(), splits);
        }
        return "ok";
    }

    /**
     * Repeats one operation on rows, and measures it: see measure. All but "create" have a row for each
     * thread, which is made before the first measured operation.
     */
    private String rows(String table, String operation, int threads, long millis) throws Exception {
        return measure(threads, millis, number -> {
            // Closed with the connection: it holds nothing of its own.
            Table rows = connection.getTable(TableName.valueOf(table));
            if (operation.equals("create")) {
                return timed(() -> createRow(rows));
            }
            byte[] row = Bytes.toBytes(Integer.toHexString(number % 16) + "-" + operation + "-" + number);
            Pair last = new Pair();
            rows.put(last.put(row));
            return timed(switch (operation) {
                case "get" -> () -> getRow(rows, row, last);
                case "compare-and-set" -> () -> compareAndSet(rows, row, last);
                case "increment" -> () -> increment(rows, row);
                case "modify" -> () -> modify(rows, row);
                default -> throw new IllegalArgumentException(operation);
            });
        });
    }

    private void createRow(Table rows) throws Exception {
        long id = ids.incrementAndGet();
        byte[] row = Bytes.toBytes(String.format("%x-create-%d", id % 16, id));
        CheckAndMutate create = CheckAndMutate.newBuilder(row).ifNotExists(ROWS, SMALL).build(new Pair().put(row));
        check(rows.checkAndMutate(create).isSuccess());
    }

    private static void getRow(Table rows, byte[] row, Pair last) throws Exception {
        Result found = rows.get(pairOf(row));
        check(Arrays.equals(found.getValue(ROWS, SMALL), last.small));
        check(Arrays.equals(found.getValue(ROWS, LARGE), last.large));
    }

    private static void compareAndSet(Table rows, byte[] row, Pair last) throws Exception {
        byte[] before = last.small;
        byte[] after = before.clone();
        Bytes.putLong(after, 0, Bytes.toLong(before) + 1);
        CheckAndMutate set = CheckAndMutate.newBuilder(row)
            .ifEquals(ROWS, SMALL, before)
            .build(new Put(row).addColumn(ROWS, SMALL, after));
        check(rows.checkAndMutate(set).isSuccess());
        last.small = after;
    }

    private static void increment(Table rows, byte[] row) throws Exception {
        Result counted = rows.increment(new Increment(row).addColumn(ROWS, COUNTER, 1));
        check(Bytes.toLong(counted.getValue(ROWS, COUNTER)) > 0);
    }

    /** Reads two cells, and replaces both if they still are what was read. */
    private static void modify(Table rows, byte[] row) throws Exception {
        boolean done = false;
        while (!done) {
            Result found = rows.get(pairOf(row));
            Pair pair = new Pair();
            pair.small = found.getValue(ROWS, SMALL);
            pair.large = found.getValue(ROWS, LARGE);
            Filter unchanged = new FilterList(is(SMALL, pair.small), is(LARGE, pair.large));
            pair.small = pair.small.clone();
            pair.large = pair.large.clone();
            Bytes.putLong(pair.small, 0, Bytes.toLong(pair.small) + 1);
            Bytes.putLong(pair.large, 0, Bytes.toLong(pair.large) + 1);
            CheckAndMutate replace = CheckAndMutate.newBuilder(row).ifMatches(unchanged).build(pair.put(row));
            done = rows.checkAndMutate(replace).isSuccess();
        }
    }

    private static Get pairOf(byte[] row) {
        return new Get(row).addColumn(ROWS, SMALL).addColumn(ROWS, LARGE);
    }

    private static Filter is(byte[] column, byte[] value) {
        SingleColumnValueFilter is = new SingleColumnValueFilter(ROWS, column, CompareOperator.EQUAL, value);
        is.setFilterIfMissing(true);
        return is;
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new IllegalStateException("an operation on rows has another result than it must have");
        }
    }

    /** The two cells of a row. */
    private static class Pair {
        byte[] small = new byte[16];
        byte[] large = new byte[100];

        Put put(byte[] row) {
            return new Put(row).addColumn(ROWS, SMALL, small).addColumn(ROWS, LARGE, large);
        }
    }

    /** Something that is repeated. It returns how many nanoseconds the measured part of it took. */
    private interface Cycle {
        long run() throws Exception;
    }

    /** Makes what one of several threads repeats. */
    private interface Start {
        Cycle of(int number) throws Exception;
    }

    private interface Operation {
        void run() throws Exception;
    }

    /** A cycle of which everything is measured. */
    private static Cycle timed(Operation operation) {
        return () -> {
            long before = System.nanoTime();
            operation.run();
            return System.nanoTime() - before;
        };
    }

    /** Repeats cycles in so many threads, in each of them one at least: "cycles/s p50_us p99_us cpu_us_per_cycle". */
    private String measure(int threads, long millis, Start start) throws Exception {
        long[][] waits = new long[threads][];
        Exception[] failures = new Exception[threads];
        long cpu = cpuNanos();
        long begin = System.nanoTime();
        List<Thread> workers = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            int self = number;
            Thread worker = new Thread(() -> {
                try {
                    waits[self] = cycles(start.of(self), begin + millis * 1_000_000);
                } catch (Exception e) {
                    failures[self] = e;
                }
            });
            workers.add(worker);
            worker.start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        for (Exception failure : failures) {
            if (failure != null) {
                throw failure;
            }
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        double used = (cpuNanos() - cpu) / 1e3;
        long[] all = Arrays.stream(waits).flatMapToLong(Arrays::stream).sorted().toArray();
        return String.format("%.1f %.1f %.1f %.1f", all.length / seconds, all[all.length / 2] / 1e3,
            all[all.length * 99 / 100] / 1e3, used / all.length);
    }

    private static long[] cycles(Cycle cycle, long end) throws Exception {
        List<Long> waits = new ArrayList<>();
        do {
            waits.add(cycle.run());
        } while (System.nanoTime() < end);
        return waits.stream().mapToLong(Long::longValue).toArray();
    }

    private static byte[] salted(byte[] key) {
        int hash = 1;
        for (byte b : key) {
            hash = 31 * hash + b;
        }
        byte[] row = new byte[key.length + 1];
        row[0] = (byte) Math.abs(hash);
        System.arraycopy(key, 0, row, 1, key.length);
        return row;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }
}
