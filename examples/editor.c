/* An editor in C, with nothing but POSIX sockets: publishes one text to `tidings serve --sockets`.
 *
 *     cc -o editor examples/editor.c
 *     ./editor -h 127.0.0.1 -p 4200 -t news -m "3 ships have come in"
 *
 * A request is three fields, each ended by a NUL: PUBLISH, the topic, the text. The broker answers "0" when it has the
 * text on disk, and "1" if it has not kept it. An editor that does not need the answer may close at once.
 */

#define _POSIX_C_SOURCE 200809L

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { TOPIC_LENGTH_MAX = 128, TEXT_LENGTH_MAX = 1024, ANSWER_SECONDS_MAX = 15 };

/* Characters, not bytes: in UTF-8 every byte but the 10xxxxxx ones begins a character. */
static size_t length(const char *text) {
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += ((unsigned char)*text & 0xC0) != 0x80;
    return count;
}

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found, *each;
    struct timeval patience = {.tv_sec = ANSWER_SECONDS_MAX};
    int connection = -1;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (each = found; each != NULL && connection < 0; each = each->ai_next) {
        connection = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        if (connection >= 0 && connect(connection, each->ai_addr, each->ai_addrlen) != 0) {
            close(connection);
            connection = -1;
        }
    }
    freeaddrinfo(found);
    if (connection >= 0) {
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    }
    return connection;
}

/* Sends a text and the NUL that ends it. */
static int send_field(int connection, const char *text) {
    size_t left = strlen(text) + 1;
    while (left > 0) {
        ssize_t sent = send(connection, text, left, MSG_NOSIGNAL);
        if (sent <= 0)
            return -1;
        text += sent;
        left -= (size_t)sent;
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *host = NULL, *port = NULL, *topic = NULL, *text = NULL;
    char answer = '\0';
    int flag, connection;

    while ((flag = getopt(argc, argv, "h:p:t:m:")) != -1) {
        switch (flag) {
        case 'h': host = optarg; break;
        case 'p': port = optarg; break;
        case 't': topic = optarg; break;
        case 'm': text = optarg; break;
        default: host = NULL; optind = argc + 1; break;
        }
    }
    if (argc != 9 || optind != argc || !host || !port || !topic || !text) {
        fprintf(stderr, "usage: %s -h HOST -p PORT -t TOPIC -m TEXT\n", argv[0]);
        return 2;
    }
    if (length(topic) > TOPIC_LENGTH_MAX || length(text) > TEXT_LENGTH_MAX) {
        fprintf(stderr, "Warning: a topic has at most %d characters and a text %d. Nothing was sent.\n",
                TOPIC_LENGTH_MAX, TEXT_LENGTH_MAX);
        return 1;
    }
    connection = connect_to(host, port);
    if (connection < 0) {
        fprintf(stderr, "Error in the connection to broker %s:%s.\n", host, port);
        return 1;
    }
    if (send_field(connection, "PUBLISH") != 0 || send_field(connection, topic) != 0 ||
        send_field(connection, text) != 0 || recv(connection, &answer, 1, 0) != 1) {
        fprintf(stderr, "Error in the connection to broker %s:%s: it gave no answer.\n", host, port);
        close(connection);
        return 1;
    }
    close(connection);
    if (answer != '0') {
        fprintf(stderr, "The broker did not keep the text.\n");
        return 1;
    }
    return 0;
}
