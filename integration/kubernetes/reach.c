/* reach SECONDS ADDRESS:PORT...: tries again and again for so long, and says of each whether a TCP connection was ever to be had
   within two seconds: open, refused, or silent. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *reach(const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) return "no address";
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0) return "no socket";
    fcntl(connection, F_SETFL, O_NONBLOCK);
    int error = connect(connection, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        struct pollfd waiting = {.fd = connection, .events = POLLOUT};
        socklen_t size = sizeof error;
        error = ETIMEDOUT;
        if (poll(&waiting, 1, 2000) == 1) getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    close(connection);
    if (error == 0) return "open";
    return error == ECONNREFUSED ? "refused" : "silent";
}

int main(int count, char **args) {
    const char *said[64] = {0};
    if (count < 3 || count > 64) return 64;
    time_t end = time(NULL) + atoi(args[1]);
    do {
        for (int i = 2; i < count; i++) {
            char host[64];
            char *port = strrchr(args[i], ':');
            if (port == NULL || port - args[i] >= (long)sizeof host) return 64;
            memcpy(host, args[i], (size_t)(port - args[i]));
            host[port - args[i]] = 0;
            if (said[i] == NULL || strcmp(said[i], "open") != 0) said[i] = reach(host, atoi(port + 1));
        }
        usleep(250000);
    } while (time(NULL) < end);
    for (int i = 2; i < count; i++) printf("%s %s\n", args[i], said[i]);
    return 0;
}
