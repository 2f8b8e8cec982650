import java.io.FileReader;
import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Single records at a pace, acks=all, on Kafka's own producer with its defaults, and the time from each call of send to
 * its callback. What is sent in the warm-up counts for nothing. Prints the records a second that were sent and
 * acknowledged, then p50, p99 and p99.9 in microseconds; Kafka's own tool rounds to milliseconds and counts its cold
 * start. Arguments: address, topic, records a second (0: as fast as it goes), milliseconds, milliseconds of warm-up,
 * bytes of a value, and a file of properties by which brokers are reached, if it takes any.
 */
public final class KafkaLoad {
    private static final String SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer";
    private static final int SAMPLES_MAX = 4_000_000;

    private final int[] micros = new int[SAMPLES_MAX];
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private int samples; // written by the producer's thread, read after flush
    private long acknowledged;

    public static void main(String[] arguments) throws Exception {
        new KafkaLoad().run(arguments);
    }

    private void run(String[] arguments) throws Exception {
        Properties properties = new Properties();
        if (arguments.length > 6) {
            try (FileReader file = new FileReader(arguments[6])) {
                properties.load(file);
            }
        }
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("acks", "all");
        properties.put("key.serializer", SERIALIZER);
        properties.put("value.serializer", SERIALIZER);
        String topic = arguments[1];
        double rate = Double.parseDouble(arguments[2]);
        long length = Long.parseLong(arguments[3]) * 1_000_000;
        long warmUp = Long.parseLong(arguments[4]) * 1_000_000;
        byte[] value = new byte[Integer.parseInt(arguments[5])];
        new Random(0).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            producer.partitionsFor(topic);
            send(producer, topic, value, rate, warmUp, false);
            producer.flush();
            long started = System.nanoTime();
            send(producer, topic, value, rate, length, true);
            producer.flush();
            double seconds = (System.nanoTime() - started) / 1e9;
            if (failure.get() != null) {
                throw failure.get();
            }
            print(acknowledged / seconds);
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, double rate, long length,
            boolean counts) throws InterruptedException {
        // Every record of a slow pace is a sample; of a fast one, every k-th.
        int every = Math.max(1, (int) (rate * length / 1e9 / SAMPLES_MAX) + 1);
        long started = System.nanoTime();
        long sent = 0;
        long now = started;
        while (now - started < length) {
            long due = rate == 0 ? sent + 1000 : (long) ((now - started) / 1e9 * rate);
            for (; sent < due; sent++) {
                long called = System.nanoTime();
                boolean isSample = counts && sent % every == 0;
                producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    } else if (counts) {
                        acknowledged++;
                        if (isSample && samples < SAMPLES_MAX) {
                            micros[samples++] = (int) ((System.nanoTime() - called) / 1000);
                        }
                    }
                });
            }
            if (rate != 0) {
                Thread.sleep(0, 500_000);
            }
            now = System.nanoTime();
        }
    }

    private void print(double rate) {
        int[] sorted = Arrays.copyOf(micros, samples);
        Arrays.sort(sorted);
        System.out.printf("%.1f %d %d %d%n", rate, sorted[(int) (samples * 0.5)], sorted[(int) (samples * 0.99)],
                sorted[(int) (samples * 0.999)]);
    }
}
