/* A wall clock that jumps: gcc -shared -fPIC -O2 -o jumping_clock.so jumping_clock.c -ldl, then LD_PRELOAD.
 *
 * The wall clock is ahead by the seconds in the file $JUMPING_CLOCK, from the moment when that exists. All processes that
 * load the library jump together, those that start later too. CLOCK_MONOTONIC is never changed.
 *
 * The kernel's own clock does not jump. A deadline on the wall clock that is passed to it is converted, as far as it is
 * passed by pthread_cond_timedwait, pthread_mutex_timedlock or sem_timedwait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 20000000LL  /* between two looks for the file */
#define WALL_S 500000000    /* a deadline of more seconds is one of the wall clock */

static atomic_llong ahead_s, looked_ns;
static int (*next_clock)(clockid_t, struct timespec *);

static int now(clockid_t clock, struct timespec *time)
{
    if (next_clock == NULL) /* before the constructor */
        return (int)syscall(SYS_clock_gettime, clock, time);
    return next_clock(clock, time);
}

__attribute__((constructor)) static void find_next(void)
{
    next_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

static long long ahead(void)
{
    struct timespec time;
    const char *path;
    char text[32] = "";
    int file;

    if (atomic_load(&ahead_s) != 0)
        return atomic_load(&ahead_s);
    now(CLOCK_MONOTONIC, &time);
    long long ns = time.tv_sec * 1000000000LL + time.tv_nsec;
    if (ns - atomic_load(&looked_ns) < LOOK_NS || (path = getenv("JUMPING_CLOCK")) == NULL)
        return 0;
    atomic_store(&looked_ns, ns);
    file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    if (syscall(SYS_read, file, text, sizeof text - 1) > 0)
        atomic_store(&ahead_s, atoll(text));
    syscall(SYS_close, file);
    return atomic_load(&ahead_s);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = now(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    time->tv_sec = exact.tv_sec;
    time->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result != NULL)
        *result = exact.tv_sec;
    return exact.tv_sec;
}

/* Return the deadline on the kernel's clock. */
static struct timespec converted(const struct timespec *deadline)
{
    struct timespec real = *deadline;
    if (real.tv_sec > WALL_S)
        real.tv_sec -= ahead();
    return real;
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*next)(pthread_mutex_t *, const struct timespec *);
    struct timespec real = converted(deadline);
    if (next == NULL)
        next = (int (*)(pthread_mutex_t *, const struct timespec *))dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    return next(mutex, &real);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline)
{
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec real = converted(deadline);
    if (next == NULL)
        next = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    return next(semaphore, &real);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec real = converted(deadline);
    if (next == NULL) /* the old version of the symbol has another layout of pthread_cond_t */
        next = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
            RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (next == NULL)
        next = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlsym(
            RTLD_NEXT, "pthread_cond_timedwait");
    return next(condition, mutex, &real);
}
