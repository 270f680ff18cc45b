/* A file system in user space, over a folder: fuse MOUNTPOINT FOLDER. Its files show no blocks, and it has neither fallocate nor
 * a rename that does not replace. Locks are the kernel's. It prints a line once it is mounted (linux/fuse.h). */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NODES = 1024, LARGEST = 1 << 17 };
static char *names[NODES] = {[1] = "."};
static int device;

/* The file's node, which keeps its number when it gets another name. */
static uint64_t node_of(const char *name, bool make)
{
    for (uint64_t i = 1; i < NODES; i++)
        if (names[i] && !strcmp(names[i], name)) return i;
    for (uint64_t i = 2; make && i < NODES; i++)
        if (!names[i]) return names[i] = strdup(name), i;
    return 0;
}

static void reply(uint64_t request, int error, const void *body, size_t size)
{
    static char out[LARGEST + 64];
    struct fuse_out_header head = {(uint32_t)(sizeof head + size), -error, request};
    memcpy(out, &head, sizeof head);
    if (size) memcpy(out + sizeof head, body, size);
    if (write(device, out, head.len) < 0) return; /* who asked is gone */
}

static int attributes(uint64_t node, struct fuse_attr *out)
{
    struct stat s;
    if (node >= NODES || !names[node] || lstat(names[node], &s)) return ENOENT;
    *out = (struct fuse_attr){.ino = node, .size = (uint64_t)s.st_size, .mode = s.st_mode, .nlink = (uint32_t)s.st_nlink, .uid = s.st_uid,
                              .gid = s.st_gid, .blksize = 4096};
    return 0;
}

static void entry(uint64_t request, const char *name, int file)
{
    struct { struct fuse_entry_out entry; struct fuse_open_out open; } out = {.open.fh = (uint64_t)file};
    struct stat s;
    bool is_there = !lstat(name, &s);
    if (is_there) out.entry.nodeid = node_of(name, true), attributes(out.entry.nodeid, &out.entry.attr);
    reply(request, is_there ? 0 : ENOENT, &out, is_there ? sizeof out.entry + (file >= 0 ? sizeof out.open : 0) : 0);
}

static void forget(const char *name) { uint64_t node = node_of(name, false); if (node) names[node] = NULL; }

static void serve(struct fuse_in_header *in, char *body)
{
    static char buffer[LARGEST];
    struct fuse_attr_out attr = {0};
    struct fuse_open_out opened = {0};
    switch (in->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_readahead = LARGEST, .max_write = LARGEST - 4096};
        return reply(in->unique, 0, &init, sizeof init);
    }
    case FUSE_LOOKUP: return entry(in->unique, body, -1);
    case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: return;
    case FUSE_SETATTR: {
        struct fuse_setattr_in *set = (void *)body;
        if (set->valid & FATTR_MODE && names[in->nodeid] && chmod(names[in->nodeid], set->mode & 07777)) return reply(in->unique, errno, NULL, 0);
    } /* fall through */
    case FUSE_GETATTR: {
        int error = attributes(in->nodeid, &attr.attr);
        return reply(in->unique, error, &attr, error ? 0 : sizeof attr);
    }
    case FUSE_CREATE: {
        struct fuse_create_in *create = (void *)body;
        const char *name = body + sizeof *create;
        int file = open(name, (int)create->flags | O_CREAT, create->mode & 07777);
        return file < 0 ? reply(in->unique, errno, NULL, 0) : entry(in->unique, name, file);
    }
    case FUSE_OPEN: {
        struct fuse_open_in *asked = (void *)body;
        int file = names[in->nodeid] ? open(names[in->nodeid], (int)asked->flags & O_ACCMODE) : -1;
        opened.fh = (uint64_t)file;
        return reply(in->unique, file < 0 ? ENOENT : 0, &opened, file < 0 ? 0 : sizeof opened);
    }
    case FUSE_OPENDIR: return reply(in->unique, 0, &opened, sizeof opened);
    case FUSE_FLUSH: case FUSE_FSYNC: case FUSE_RELEASEDIR: return reply(in->unique, 0, NULL, 0);
    case FUSE_RELEASE: close((int)((struct fuse_release_in *)(void *)body)->fh); return reply(in->unique, 0, NULL, 0);
    case FUSE_READ: {
        struct fuse_read_in *asked = (void *)body;
        ssize_t got = pread((int)asked->fh, buffer, asked->size < LARGEST ? asked->size : LARGEST, (off_t)asked->offset);
        return reply(in->unique, got < 0 ? errno : 0, buffer, got < 0 ? 0 : (size_t)got);
    }
    case FUSE_WRITE: {
        struct fuse_write_in *asked = (void *)body;
        ssize_t put = pwrite((int)asked->fh, asked + 1, asked->size, (off_t)asked->offset);
        struct fuse_write_out out = {.size = (uint32_t)put};
        return reply(in->unique, put < 0 ? errno : 0, &out, put < 0 ? 0 : sizeof out);
    }
    case FUSE_UNLINK: { int error = unlink(body) ? errno : 0; forget(body); return reply(in->unique, error, NULL, 0); }
    case FUSE_RENAME: {
        const char *from = body + sizeof(struct fuse_rename_in), *to = from + strlen(from) + 1;
        int error = rename(from, to) ? errno : 0;
        if (!error) forget(to), names[node_of(from, true)] = strdup(to);
        return reply(in->unique, error, NULL, 0);
    }
    case FUSE_RENAME2: return reply(in->unique, EINVAL, NULL, 0);
    default: return reply(in->unique, ENOSYS, NULL, 0);
    }
}

int main(int count, char **arguments)
{
    static char request[LARGEST + 4096] __attribute__((aligned(8)));
    char options[99];
    if (count != 3 || (device = open("/dev/fuse", O_RDWR | O_CLOEXEC)) < 0) return 1;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("test", arguments[1], "fuse.test", 0, options) || chdir(arguments[2])) return 1;
    puts("mounted"), fflush(stdout);
    ssize_t size;
    while ((size = read(device, request, sizeof request)) > 0 || errno == EINTR || errno == ENOENT)
        if (size > 0) serve((void *)request, request + sizeof(struct fuse_in_header));
    return 0;
}
