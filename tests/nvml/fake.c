/* A libnvidia-ml.so.1 without a GPU: answers from a text file that is looked at again at every call.
 *
 * OUTLAST_FAKE_NVML names the file. Each line is "key value":
 *   driver_version 580.95.05
 *   gpu.3.bus_id 0000:4d:00.0          values by GPU index; gpu.*.key for all, the specific one wins
 *   gpu.3.field.230 1                  a field value; gpu.3.field.230.ret 3 is its own return code
 *   gpu.3.field.161@4 7                a field value of one link; without @4 for every link
 *   gpu.3.field_garbage 99             what an unsupported field holds instead of 0
 *   gpu.3.nvlinks 111101               the state of each link; no such key: no NVLink at all
 *   gpu.3.mig_slots 1,-,5              GPU instance ids by index, - is a hole
 *   gpu.3.process_ids 4242@5,17        pids, those with @ in a GPU instance
 *   gpu.3.name a\xff\x00b              bytes in any text
 *   call.nvmlDeviceGetUUID.3 hang      what a call does before it answers; without .3 for every GPU
 * Actions: ret:N  sleep:MS  hang  spin  abort  segv  dstate:PATH  stdout:TEXT
 * A value that the file does not have is NVML_ERROR_NOT_SUPPORTED (3).
 * With OLD_DRIVER defined, the functions that came with the last few drivers are not there at all.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

static int initialised;

/* --- the script */

static const char *script(void) {
    static char *content;
    static struct stat last;
    struct stat now;
    const char *path = getenv("OUTLAST_FAKE_NVML");
    if (!path || stat(path, &now)) return content ? content : "";
    if (content && now.st_ino == last.st_ino && now.st_size == last.st_size
        && !memcmp(&now.st_mtim, &last.st_mtim, sizeof now.st_mtim)) return content;
    FILE *file = fopen(path, "re");
    if (!file) return content ? content : "";
    char *fresh = calloc(1, (size_t)now.st_size + 1);
    size_t size = fread(fresh, 1, (size_t)now.st_size, file);
    fclose(file);
    fresh[size] = 0;
    free(content);
    content = fresh;
    last = now;
    return content;
}

static int look_up(const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *line = script(); *line; ) {
        const char *end = strchrnul(line, '\n');
        if ((size_t)(end - line) > length && line[length] == ' ' && !strncmp(line, key, length)) {
            snprintf(value, size, "%.*s", (int)(end - line - (long)length - 1), line + length + 1);
            return 1;
        }
        line = *end ? end + 1 : end;
    }
    return 0;
}

static int of_gpu(int gpu, const char *what, char *value, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, what);
    if (look_up(key, value, size)) return 1;
    snprintf(key, sizeof key, "gpu.*.%s", what);
    return look_up(key, value, size);
}

static int number(int gpu, const char *what, long long *out) {
    char value[64];
    if (!of_gpu(gpu, what, value, sizeof value)) return NOT_SUPPORTED;
    *out = *value == '-' ? strtoll(value, NULL, 0) : (long long)strtoull(value, NULL, 0);
    return OK;
}

static int text(int gpu, const char *what, char *out, unsigned size) {
    char value[512];
    unsigned length = 0;
    if (!of_gpu(gpu, what, value, sizeof value)) return NOT_SUPPORTED;
    for (char *at = value; *at; length++) {
        if (length + 1 >= size) return INSUFFICIENT_SIZE;
        unsigned byte;
        if (at[0] == '\\' && at[1] == 'x' && sscanf(at + 2, "%2x", &byte) == 1) {
            out[length] = (char)byte;
            at += 4;
        } else out[length] = *at++;
    }
    out[length] = 0;
    return OK;
}

/* What the script has this call do; the return code it must give, or OK to go on. */
static int act(const char *call, int gpu) {
    char key[128], action[512];
    snprintf(key, sizeof key, "call.%s.%d", call, gpu);
    if (!look_up(key, action, sizeof action)) {
        snprintf(key, sizeof key, "call.%s", call);
        if (!look_up(key, action, sizeof action)) return OK;
    }
    if (!strncmp(action, "ret:", 4)) return atoi(action + 4);
    if (!strcmp(action, "hang")) for (;;) pause();
    if (!strcmp(action, "spin")) for (volatile int i = 0;; i++) ;
    if (!strcmp(action, "abort")) abort();
    if (!strcmp(action, "segv")) *(volatile int *)8 = 1;
    if (!strncmp(action, "sleep:", 6)) {
        long ms = atol(action + 6);
        struct timespec pause_for = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause_for, NULL);
    }
    /* On a frozen file system creating a file sleeps where no signal reaches. */
    if (!strncmp(action, "dstate:", 7)) close(open(action + 7, O_CREAT | O_WRONLY, 0600));
    if (!strncmp(action, "stdout:", 7)) { printf("%s\n", action + 7); fflush(stdout); }
    return OK;
}

/* --- handles: the GPU in the low half, a MIG slice of it in the high half */

#define GPU(handle) ((int)((intptr_t)(handle) & 0xffff) - 1)
#define SLICE(handle) ((int)((intptr_t)(handle) >> 16) - 1)
#define HANDLE(gpu, slice) ((void *)(intptr_t)(((slice) + 1) << 16 | ((gpu) + 1)))

#define ENTER(gpu) \
    int entered = act(__func__, gpu); \
    if (entered) return entered; \
    if (!initialised) return UNINITIALIZED

int nvmlInitWithFlags(unsigned flags) {
    int entered = act(__func__, -1);
    (void)flags;
    if (!entered) initialised = 1;
    return entered;
}
int nvmlShutdown(void) { ENTER(-1); initialised = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "scripted"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[80] = "0";
    ENTER(-1);
    look_up("driver_version", value, sizeof value);
    snprintf(out, size, "%s", value);
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    char value[64], count[16] = "0";
    look_up("gpus", count, sizeof count);
    for (int gpu = 0; gpu < atoi(count); gpu++) {
        if (!of_gpu(gpu, "bus_id", value, sizeof value) || strcasecmp(value, bus_id)) continue;
        ENTER(gpu);
        *handle = HANDLE(gpu, -1);
        return OK;
    }
    return NOT_FOUND;
}

/* --- one value a call */

#define TEXT_CALL(name, what) \
    int name(void *h, char *out, unsigned size) { ENTER(GPU(h)); return text(GPU(h), what, out, size); }
#define NUMBER_CALL(name, what, type) \
    int name(void *h, type *out) { \
        long long v = 0; ENTER(GPU(h)); \
        int ret = number(GPU(h), what, &v); \
        if (!ret) *out = (type)v; \
        return ret; }

TEXT_CALL(nvmlDeviceGetUUID, "uuid")
TEXT_CALL(nvmlDeviceGetSerial, "serial")
TEXT_CALL(nvmlDeviceGetName, "name")
NUMBER_CALL(nvmlDeviceGetMinorNumber, "minor", unsigned)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, "persistence", unsigned)
NUMBER_CALL(nvmlDeviceGetPerformanceState, "performance_state", unsigned)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", unsigned)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", unsigned)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", unsigned)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", unsigned)
NUMBER_CALL(nvmlDeviceGetRetiredPagesPendingStatus, "pages_pending", unsigned)
NUMBER_CALL(nvmlDeviceGetMaxMigDeviceCount, "mig_count_max", unsigned)
NUMBER_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, "clocks_event_reasons", unsigned long long)

int nvmlDeviceGetIndex(void *h, unsigned *out) { ENTER(GPU(h)); *out = (unsigned)GPU(h); return OK; }

int nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *out) {
    long long v = 0; ENTER(GPU(h));
    char what[40];
    snprintf(what, sizeof what, "ecc_%s_%s", kind ? "uncorrected" : "corrected",
             counter ? "aggregate" : "volatile");
    int ret = number(GPU(h), what, &v);
    *out = (unsigned long long)v;
    return ret;
}

int nvmlDeviceGetEccMode(void *h, unsigned *current, unsigned *pending) {
    long long v = 0; ENTER(GPU(h));
    int ret = number(GPU(h), "ecc", &v);
    *current = *pending = (unsigned)v;
    return ret;
}

int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *out) {
    long long v = 0; ENTER(GPU(h)); (void)sensor;
    int ret = number(GPU(h), "temperature", &v);
    *out = (unsigned)v;
    return ret;
}

/* --- MIG */

int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    long long now = 0, next; ENTER(GPU(h));
    int ret = number(GPU(h), "mig", &now);
    next = now;
    number(GPU(h), "mig_pending", &next);
    *current = (unsigned)now;
    *pending = (unsigned)next;
    return ret;
}

/* The n-th word of a comma-separated value. */
static int word(int gpu, const char *what, int n, char *out, size_t size) {
    char all[512], *at = all, *found;
    if (!of_gpu(gpu, what, all, sizeof all)) return 0;
    while ((found = strsep(&at, ","))) if (*found && n-- == 0) {
        snprintf(out, size, "%s", found);
        return 1;
    }
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **slice) {
    char id[16]; ENTER(GPU(h));
    if (!word(GPU(h), "mig_slots", (int)index, id, sizeof id) || *id == '-') return NOT_FOUND;
    *slice = HANDLE(GPU(h), (int)index);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(void *h, unsigned *out) {
    char id[16]; ENTER(GPU(h));
    if (SLICE(h) < 0 || !word(GPU(h), "mig_slots", SLICE(h), id, sizeof id)) return INVALID_ARGUMENT;
    *out = (unsigned)atoi(id);
    return OK;
}

/* --- memory */

int nvmlDeviceGetRemappedRows(void *h, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    long long c = 0, u = 0, p = 0, f = 0; ENTER(GPU(h));
    number(GPU(h), "remapped_corrected", &c); number(GPU(h), "remapped_uncorrected", &u);
    int ret = number(GPU(h), "remap_pending", &p) | number(GPU(h), "remap_failed", &f);
    *corr = (unsigned)c; *unc = (unsigned)u; *pending = (unsigned)p; *failed = (unsigned)f;
    return ret;
}

typedef struct { unsigned max, high, partial, low, none; } Histogram;
int nvmlDeviceGetRowRemapperHistogram(void *h, Histogram *out) {
    char all[128]; ENTER(GPU(h));
    if (!of_gpu(GPU(h), "remap_histogram", all, sizeof all)) return NOT_SUPPORTED;
    sscanf(all, "%u,%u,%u,%u,%u", &out->max, &out->high, &out->partial, &out->low, &out->none);
    return OK;
}

typedef struct { unsigned long long total, free, used; } Memory1;
int nvmlDeviceGetMemoryInfo(void *h, Memory1 *m) {
    long long total = 0, used = 0; ENTER(GPU(h));
    int ret = number(GPU(h), "memory_total", &total);
    number(GPU(h), "memory_used", &used);
    m->total = (unsigned long long)total; m->used = (unsigned long long)used;
    m->free = m->total - m->used;
    return ret;
}

typedef struct { unsigned version; unsigned long long counts[11]; unsigned threshold_exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(void *h, Sram *s) {
    long long v = 0, parity = 0, secded = 0; ENTER(GPU(h));
    if (s->version != 0x1000068) return VERSION_MISMATCH;
    int ret = number(GPU(h), "sram_threshold_exceeded", &v);
    number(GPU(h), "sram_parity", &parity);
    number(GPU(h), "sram_secded", &secded);
    s->counts[0] = (unsigned long long)parity;
    s->counts[1] = (unsigned long long)secded;
    s->threshold_exceeded = (unsigned)v;
    return ret;
}

/* --- fields */

typedef struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type; int32_t ret;
                 union { double d; long long ll; unsigned u; } value; } FieldValue;
int nvmlDeviceGetFieldValues(void *h, int count, FieldValue *values) {
    ENTER(GPU(h));
    for (int i = 0; i < count; i++) {
        char what[48];
        long long v = 0, ret = 0, garbage = 0;
        snprintf(what, sizeof what, "field.%u.ret", values[i].field);
        number(GPU(h), what, &ret);
        snprintf(what, sizeof what, "field.%u@%u", values[i].field, values[i].scope);
        if (!ret && number(GPU(h), what, &v)) {
            snprintf(what, sizeof what, "field.%u", values[i].field);
            ret = number(GPU(h), what, &v);
        }
        number(GPU(h), "field_garbage", &garbage);
        values[i].ret = (int32_t)ret;
        values[i].type = v < 0 ? 5 : 3;
        values[i].value.ll = ret ? garbage : v;   /* as the real one: an unsupported field holds 0, or anything */
    }
    return OK;
}

/* --- NVLink and fabric */

int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active) {
    char states[64]; ENTER(GPU(h));
    if (!of_gpu(GPU(h), "nvlinks", states, sizeof states)) return NOT_SUPPORTED;
    if (link >= strlen(states)) return INVALID_ARGUMENT;
    if (states[link] == '-') return NOT_SUPPORTED;
    *active = states[link] == '1';
    return OK;
}

int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned link, int counter, unsigned long long *out) {
    char what[48]; long long v = 0; ENTER(GPU(h));
    snprintf(what, sizeof what, "nvlink_error.%d@%u", counter, link);
    int ret = number(GPU(h), what, &v);
    *out = (unsigned long long)v;
    return ret;
}

#ifndef OLD_DRIVER

NUMBER_CALL(nvmlDeviceGetCurrentClocksEventReasons, "clocks_event_reasons", unsigned long long)

typedef struct { unsigned version; int sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(void *h, Temperature *t) {
    long long v = 0; ENTER(GPU(h));
    if (t->version != 0x100000C) return VERSION_MISMATCH;
    int ret = number(GPU(h), "temperature", &v);
    t->temperature = (int)v;
    return ret;
}

typedef struct { unsigned version; int margin; } Margin;
int nvmlDeviceGetMarginTemperature(void *h, Margin *m) {
    long long v = 0; ENTER(GPU(h));
    if (m->version != 0x1000008) return VERSION_MISMATCH;
    int ret = number(GPU(h), "temperature_margin", &v);
    m->margin = (int)v;
    return ret;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *m) {
    long long total = 0, used = 0; ENTER(GPU(h));
    if (m->version != 0x2000028) return VERSION_MISMATCH;
    int ret = number(GPU(h), "memory_total", &total);
    number(GPU(h), "memory_used", &used);
    m->total = (unsigned long long)total; m->used = (unsigned long long)used;
    m->free = m->total - m->used;
    return ret;
}

typedef struct { unsigned version, channel, tpc; } Repair;
int nvmlDeviceGetRepairStatus(void *h, Repair *r) {
    long long channel = 0, tpc = 0; ENTER(GPU(h));
    if (r->version != 0x100000C) return VERSION_MISMATCH;
    int ret = number(GPU(h), "channel_repair_pending", &channel) | number(GPU(h), "tpc_repair_pending", &tpc);
    r->channel = (unsigned)channel; r->tpc = (unsigned)tpc;
    return ret;
}

typedef struct { unsigned version, unrepairable; } Unrepairable;
int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *h, Unrepairable *u) {
    long long v = 0; ENTER(GPU(h));
    if (u->version != 0x1000008) return VERSION_MISMATCH;
    int ret = number(GPU(h), "memory_unrepairable", &v);
    u->unrepairable = (unsigned)v;
    return ret;
}

typedef struct { unsigned version; uint8_t uuid[16]; int status; uint32_t clique; uint8_t state;
                 uint32_t mask; uint8_t summary; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *f) {
    long long state = 0, status = 0, clique = 0, mask = 0, summary = 0, newest = 3; ENTER(GPU(h));
    number(GPU(h), "fabric_version", &newest);
    if (f->version != 0x2000024 && !(f->version == 0x3000028 && newest >= 3)) return VERSION_MISMATCH;
    int ret = number(GPU(h), "fabric_state", &state);
    number(GPU(h), "fabric_status", &status);
    number(GPU(h), "fabric_clique", &clique);
    number(GPU(h), "fabric_mask", &mask);
    f->state = (uint8_t)state;
    f->status = (int)status;
    f->clique = (uint32_t)clique;
    f->mask = (uint32_t)mask;
    if (f->version == 0x3000028 && !number(GPU(h), "fabric_summary", &summary)) f->summary = (uint8_t)summary;
    return ret;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, Process *out) {
    char all[4096], *at = all, *found, *in;
    unsigned n = 0;
    ENTER(GPU(h));
    if (!of_gpu(GPU(h), "process_ids", all, sizeof all)) return NOT_SUPPORTED;
    while ((found = strsep(&at, ","))) if (*found) {
        in = strchr(found, '@');
        if (out && n < *count)
            out[n] = (Process){(unsigned)atoi(found), 0, in ? (unsigned)atoi(in + 1) : ~0u, in ? 0 : ~0u};
        n++;
    }
    int ret = n > (out ? *count : 0) ? INSUFFICIENT_SIZE : OK;
    *count = n;
    return ret;
}

#endif
