import java.io.FileReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * One record at a time, acks=all, on Kafka's own clients with their defaults but linger.ms=0. `produce` counts until
 * the acknowledgement, `deliver` until a waiting consumer has the record. Prints p50, p99 and the maximum in
 * microseconds: Kafka's own tools round to milliseconds and count their own warm-up. Arguments: mode, address, topic,
 * records, bytes of a value, and a file of properties by which brokers are reached, if it takes any.
 */
public final class KafkaLatency {
    private static final String BYTES = "org.apache.kafka.common.serialization.ByteArray";

    public static void main(String[] arguments) throws Exception {
        boolean deliver = arguments[0].equals("deliver");
        String topic = arguments[2];
        int records = Integer.parseInt(arguments[3]);
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        int warmUp = Math.max(1000, records / 2);
        long[] nanos = new long[records];
        Properties properties = new Properties();
        if (arguments.length > 5) {
            try (FileReader file = new FileReader(arguments[5])) {
                properties.load(file);
            }
        }
        properties.put("bootstrap.servers", arguments[1]);
        properties.put("acks", "all");
        properties.put("linger.ms", "0");
        properties.put("key.serializer", BYTES + "Serializer");
        properties.put("value.serializer", BYTES + "Serializer");
        properties.put("key.deserializer", BYTES + "Deserializer");
        properties.put("value.deserializer", BYTES + "Deserializer");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            for (int sent = -warmUp; sent < records; sent++) {
                long started = System.nanoTime();
                var future = producer.send(new ProducerRecord<>(topic, 0, null, value));
                if (deliver) {
                    while (consumer.poll(Duration.ofSeconds(10)).isEmpty()) {
                        // waits for the record that was just sent
                    }
                } else {
                    future.get();
                }
                if (sent >= 0) {
                    nanos[sent] = System.nanoTime() - started;
                }
            }
        }
        Arrays.sort(nanos);
        System.out.printf("%d %d %d%n", nanos[records / 2] / 1000, nanos[records * 99 / 100] / 1000,
                nanos[records - 1] / 1000);
    }
}
