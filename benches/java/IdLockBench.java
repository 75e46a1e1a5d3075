import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.hbase.util.IdLock;

/**
 * HBase's IdLock as a peer of benches/id_lock.rs. The benchmark starts this program once and requests
 * one round after another, so both sides take turns and this one keeps its compiled code.
 *
 * <p>Each line of input gets one line of output. {@code cycles <keys> <threads> <ms>} returns the ns
 * per lock + unlock, all threads together. {@code distinct <ids>} returns the ns per id and the bytes
 * still held after a garbage collection. The program exits when its input ends.
 */
public final class IdLockBench {
  private static final int BATCH = 64;

  private static volatile boolean stop;

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.trim().split(" ");
      if (words[0].equals("cycles")) {
        System.out.println(
            cycles(Long.parseLong(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3])));
      } else if (words[0].equals("distinct")) {
        System.out.println(distinct(Long.parseLong(words[1])));
      } else {
        throw new IllegalArgumentException(line);
      }
      System.out.flush();
    }
  }

  private static double cycles(long keys, int threads, long ms) throws Exception {
    IdLock lock = new IdLock();
    AtomicLong total = new AtomicLong();
    CountDownLatch begin = new CountDownLatch(1);
    Thread[] workers = new Thread[threads];
    stop = false;
    for (int i = 0; i < threads; i++) {
      long seed = i + 1;
      workers[i] = new Thread(() -> total.addAndGet(work(lock, keys, seed, begin)), "cycles-" + i);
      workers[i].start();
    }
    long start = System.nanoTime();
    begin.countDown();
    Thread.sleep(ms);
    stop = true;
    for (Thread worker : workers) {
      worker.join();
    }
    return (double) (System.nanoTime() - start) / total.get();
  }

  private static long work(IdLock lock, long keys, long seed, CountDownLatch begin) {
    long random = seed * 0x9E3779B97F4A7C15L;
    long done = 0;
    try {
      begin.await();
      while (!stop) {
        for (int i = 0; i < BATCH; i++) {
          random ^= random << 13;
          random ^= random >>> 7;
          random ^= random << 17;
          IdLock.Entry entry = lock.getLockEntry((random >>> 11) & (keys - 1));
          lock.releaseLockEntry(entry);
        }
        done += BATCH;
      }
    } catch (IOException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
    return done;
  }

  private static String distinct(long ids) throws IOException {
    IdLock lock = new IdLock();
    long before = bytesUsed();
    long start = System.nanoTime();
    for (long id = 0; id < ids; id++) {
      lock.releaseLockEntry(lock.getLockEntry(id * 0x9E3779B97F4A7C15L));
    }
    double nanos = (double) (System.nanoTime() - start) / ids;
    long kept = Math.max(0, bytesUsed() - before);
    // This use keeps the lock reachable, so the collections above could not free it.
    lock.releaseLockEntry(lock.getLockEntry(0));
    return nanos + " " + kept;
  }

  private static long bytesUsed() {
    Runtime runtime = Runtime.getRuntime();
    for (int i = 0; i < 3; i++) {
      System.gc();
    }
    return runtime.totalMemory() - runtime.freeMemory();
  }
}
