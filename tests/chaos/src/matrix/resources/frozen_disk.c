/* Lets fsync and fdatasync wait while the file $PGMILL_CHAOS_FROZEN exists, as on a disk that does not answer. No
 * signal ends the wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int sync_when_thawed(const char *function, int file)
{
    const char *marker = getenv("PGMILL_CHAOS_FROZEN");
    int (*sync)(int) = (int (*)(int)) dlsym(RTLD_NEXT, function);

    while (marker != NULL && access(marker, F_OK) == 0)
        usleep(10000);
    return sync(file);
}

int fsync(int file)
{
    return sync_when_thawed("fsync", file);
}

int fdatasync(int file)
{
    return sync_when_thawed("fdatasync", file);
}
