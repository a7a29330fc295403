/*
 * Makes the file system of Python's modules slow, for programs that preload it: each call
 * that opens or looks at a file below a directory python3.* takes 4 ms longer, as on a
 * file system of another host, once the file SLOW_FROM is there. What the dynamic linker
 * opens itself is not delayed, nor is what is read of open files.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void delay(const char *path)
{
	const struct timespec time = {0, 4000000};
	const char *from = getenv("SLOW_FROM");

	if (path && strstr(path, "/python3") && from && syscall(SYS_faccessat, AT_FDCWD, from, F_OK) == 0)
		nanosleep(&time, NULL);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                              \
	int name(const char *path, int flags, ...)              \
	{                                                       \
		va_list rest;                                   \
		va_start(rest, flags);                          \
		int mode = flags & O_CREAT ? va_arg(rest, int) : 0; \
		va_end(rest);                                   \
		delay(path);                                    \
		return NEXT(name)(path, flags, mode);           \
	}

#define STAT(name, type)                                \
	int name(const char *path, struct type *result) \
	{                                               \
		delay(path);                            \
		return NEXT(name)(path, result);        \
	}

OPEN(open)
OPEN(open64)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

DIR *opendir(const char *path)
{
	delay(path);
	return NEXT(opendir)(path);
}

int access(const char *path, int mode)
{
	delay(path);
	return NEXT(access)(path, mode);
}
