/* The calls of libfabric that Farhold makes, as plain functions: libfabric's data path is inline C, which Rust cannot link.
 *
 * A channel is one domain, endpoint, address vector and completion queue, and an arena of frames: `rx` frames to receive
 * into, then `tx` frames to send from. An operation is known by its slot: a frame's number, or, for remote reads and writes,
 * a number from rx + tx on. Each slot has the context that providers with FI_CONTEXT2 want to themselves until completion.
 *
 * Functions return 0 or more when done, a negative libfabric error otherwise; -FI_EAGAIN means: poll, then again.
 * Needs libfabric 1.17 or newer. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define API FI_VERSION(1, 17)
#define COMPLETIONS_MAX 16

struct farhold_options {
    const char *provider;
    const char *address; /* local address to bind to, or NULL */
    char *arena;
    uint64_t frame_bytes;
    uint32_t rx, tx, rma;
    uint32_t wants_rma;
    uint32_t wants_wait;
};

struct farhold_traits {
    char provider[64];
    uint64_t mr_mode;
    uint64_t max_msg_size;
    uint32_t has_rma;
    uint32_t has_wait;
    uint32_t wants_local_mr;
    uint32_t api_version;
};

struct farhold_completion {
    uint32_t slot; /* UINT32_MAX: of no operation of ours */
    int32_t error; /* 0, or a libfabric error, positive */
    uint64_t len;
};

struct farhold_region {
    struct fid_mr *mr;
    uint64_t key;
    uint64_t base; /* remote address of its first byte */
};

struct farhold_channel {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *arena_mr;
    void *arena_desc;
    char *arena;
    uint64_t frame_bytes;
    uint32_t rx, tx, rma;
    int wait_fd; /* -1: this provider cannot be waited for */
    struct fi_context2 *contexts;
};

/* ofi_rxm passes frames on to tcp without a header and buffers of its own: a microsecond less for each. libfabric has no other way to
 * ask for it than the environment, which it reads at its first call. Before `main` no thread can be reading that. What the user
 * has set stays. */
__attribute__((constructor)) static void prefer_passthru(void) { setenv("FI_OFI_RXM_ENABLE_PASSTHRU", "1", 0); }

static struct fi_info *hints_of(const char *provider, uint64_t caps) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = caps;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = provider ? strdup(provider) : NULL;
    return hints;
}

static int information(const struct farhold_options *options, uint64_t caps, struct fi_info **info) {
    struct fi_info *hints = hints_of(options->provider, caps);
    if (!hints)
        return -FI_ENOMEM;
    int done = fi_getinfo(API, options->address, NULL, options->address ? FI_SOURCE : 0, hints, info);
    fi_freeinfo(hints);
    return done;
}

/* Is there a provider of this name, whatever it can do? */
int farhold_provider_exists(const char *provider) {
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    if (!hints)
        return 0;
    hints->mode = ~0ull;
    hints->domain_attr->mr_mode = ~3; /* all but the two that are no bits but names of old modes */
    hints->fabric_attr->prov_name = strdup(provider);
    int done = fi_getinfo(API, NULL, NULL, 0, hints, &info);
    fi_freeinfo(hints);
    fi_freeinfo(info);
    return done == 0;
}

struct farhold_found {
    char provider[64];
    uint32_t has_rma;
    uint32_t has_atomics;
};

/* What this machine has with reliable messages in order, each provider once; returns how many. */
int farhold_found(struct farhold_found *found, uint32_t count_max, uint32_t *version) {
    struct fi_info *hints = hints_of(NULL, 0), *info = NULL; /* no capabilities asked for: all are told */
    uint32_t count = 0;
    *version = fi_version();
    if (!hints)
        return 0;
    int done = fi_getinfo(API, NULL, NULL, 0, hints, &info);
    fi_freeinfo(hints);
    for (struct fi_info *one = done < 0 ? NULL : info; one; one = one->next) {
        const char *name = one->fabric_attr->prov_name;
        uint32_t at = 0;
        while (at < count && strncmp(found[at].provider, name, sizeof found[at].provider - 1))
            at++;
        if (at == count) {
            if (count == count_max)
                break;
            memset(&found[count], 0, sizeof *found);
            snprintf(found[count++].provider, sizeof found[at].provider, "%s", name);
        }
        found[at].has_rma |= (one->caps & FI_RMA) != 0;
        found[at].has_atomics |= (one->caps & FI_ATOMIC) != 0;
    }
    fi_freeinfo(info);
    return (int)count;
}

void farhold_close(struct farhold_channel *channel) {
    if (channel->ep)
        fi_close(&channel->ep->fid);
    if (channel->arena_mr)
        fi_close(&channel->arena_mr->fid);
    if (channel->cq)
        fi_close(&channel->cq->fid);
    if (channel->av)
        fi_close(&channel->av->fid);
    if (channel->domain)
        fi_close(&channel->domain->fid);
    if (channel->fabric)
        fi_close(&channel->fabric->fid);
    fi_freeinfo(channel->info);
    free(channel->contexts);
    free(channel);
}

static int open_queue(struct farhold_channel *channel, int wants_wait) {
    struct fi_cq_attr attributes = {
        .format = FI_CQ_FORMAT_MSG,
        .size = channel->rx + channel->tx + channel->rma,
        .wait_obj = FI_WAIT_FD,
    };
    channel->wait_fd = -1;
    /* libfabric 1.17's shm takes FI_WAIT_FD and then never wakes. */
    if (wants_wait && strcmp(channel->info->fabric_attr->prov_name, "shm") &&
        fi_cq_open(channel->domain, &attributes, &channel->cq, NULL) == 0) {
        if (fi_control(&channel->cq->fid, FI_GETWAIT, &channel->wait_fd) == 0)
            return 0;
        channel->wait_fd = -1;
        fi_close(&channel->cq->fid);
        channel->cq = NULL;
    }
    attributes.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(channel->domain, &attributes, &channel->cq, NULL);
}

/* Opens a channel; `failed` names the call that did not work. */
int farhold_open(const struct farhold_options *options, struct farhold_channel **opened, struct farhold_traits *traits,
                 const char **failed) {
    struct farhold_channel *channel = calloc(1, sizeof *channel);
    uint32_t slots = options->rx + options->tx + options->rma;
    int done = -FI_ENOMEM;
    *failed = "calloc";
    if (!channel)
        return done;
    channel->contexts = calloc(slots, sizeof *channel->contexts);
    channel->arena = options->arena;
    channel->frame_bytes = options->frame_bytes;
    channel->rx = options->rx;
    channel->tx = options->tx;
    channel->rma = options->rma;
    if (!channel->contexts)
        goto no;
#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        *failed = #call;                                                                                               \
        done = (call);                                                                                                 \
        if (done < 0)                                                                                                  \
            goto no;                                                                                                   \
    } while (0)
    *failed = "fi_getinfo";
    done = options->wants_rma ? information(options, FI_MSG | FI_RMA, &channel->info) : -FI_ENODATA;
    if (done < 0)
        done = information(options, FI_MSG, &channel->info);
    if (done < 0)
        goto no;
    struct fi_info *info = channel->info;
    /* Small queues: a channel is one thread's, and there may be hundreds in a process. */
    info->tx_attr->size = options->tx + options->rma;
    info->rx_attr->size = options->rx;
    STEP(fi_fabric(info->fabric_attr, &channel->fabric, NULL));
    STEP(fi_domain(channel->fabric, info, &channel->domain, NULL));
    STEP(open_queue(channel, options->wants_wait));
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    STEP(fi_av_open(channel->domain, &av, &channel->av, NULL));
    STEP(fi_endpoint(channel->domain, info, &channel->ep, NULL));
    STEP(fi_ep_bind(channel->ep, &channel->av->fid, 0));
    STEP(fi_ep_bind(channel->ep, &channel->cq->fid, FI_TRANSMIT | FI_RECV));
    STEP(fi_enable(channel->ep));
    if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
        STEP(fi_mr_reg(channel->domain, channel->arena, options->frame_bytes * (options->rx + options->tx),
                       FI_SEND | FI_RECV, 0, 1, 0, &channel->arena_mr, NULL));
        channel->arena_desc = fi_mr_desc(channel->arena_mr);
    }
#undef STEP
    snprintf(traits->provider, sizeof traits->provider, "%s", info->fabric_attr->prov_name);
    traits->mr_mode = info->domain_attr->mr_mode;
    traits->max_msg_size = info->ep_attr->max_msg_size;
    traits->has_rma = (info->caps & FI_RMA) != 0;
    traits->has_wait = channel->wait_fd >= 0;
    traits->wants_local_mr = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
    traits->api_version = fi_version();
    *opened = channel;
    return 0;
no:
    farhold_close(channel);
    return done;
}

int farhold_name(struct farhold_channel *channel, void *name, size_t *len) {
    return fi_getname(&channel->ep->fid, name, len);
}

int farhold_meet(struct farhold_channel *channel, const void *name, uint64_t *peer) {
    int done = fi_av_insert(channel->av, name, 1, peer, 0, NULL);
    return done == 1 ? 0 : done < 0 ? done : -FI_EADDRNOTAVAIL;
}

int farhold_forget(struct farhold_channel *channel, uint64_t peer) {
    fi_addr_t address = peer;
    return fi_av_remove(channel->av, &address, 1, 0);
}

int64_t farhold_recv(struct farhold_channel *channel, uint32_t slot) {
    return fi_recv(channel->ep, channel->arena + slot * channel->frame_bytes, channel->frame_bytes, channel->arena_desc,
                   FI_ADDR_UNSPEC, &channel->contexts[slot]);
}

int64_t farhold_send(struct farhold_channel *channel, uint32_t slot, uint64_t len, uint64_t peer) {
    return fi_send(channel->ep, channel->arena + slot * channel->frame_bytes, len, channel->arena_desc, peer,
                   &channel->contexts[slot]);
}

/* A remote read, or a remote write that is complete when its bytes are in the remote memory. */
int64_t farhold_rma(struct farhold_channel *channel, int is_write, uint32_t slot, void *local, uint64_t len,
                    struct fid_mr *local_mr, uint64_t peer, uint64_t remote, uint64_t key) {
    void *desc = local_mr ? fi_mr_desc(local_mr) : NULL;
    void *context = &channel->contexts[slot];
    if (!is_write)
        return fi_read(channel->ep, local, len, desc, peer, remote, key, context);
    struct iovec from = {.iov_base = local, .iov_len = len};
    struct fi_rma_iov to = {.addr = remote, .len = len, .key = key};
    struct fi_msg_rma message = {
        .msg_iov = &from, .desc = &desc, .iov_count = 1, .addr = peer, .rma_iov = &to, .rma_iov_count = 1, .context = context,
    };
    return fi_writemsg(channel->ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
}

/* Registers memory: for what peers may do, else, if they may do nothing, for this channel's own remote reads and writes. */
int farhold_register(struct farhold_channel *channel, void *memory, uint64_t len, uint64_t wanted_key, int peers_read, int peers_write,
                     struct farhold_region *region) {
    uint64_t access = (peers_read ? FI_REMOTE_READ : 0) | (peers_write ? FI_REMOTE_WRITE : 0);
    if (!access)
        access = FI_READ | FI_WRITE;
    int done = fi_mr_reg(channel->domain, memory, len, access, 0, wanted_key, 0, &region->mr, NULL);
    if (done < 0)
        return done;
    region->key = fi_mr_key(region->mr);
    region->base = channel->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)memory : 0;
    return 0;
}

int farhold_unregister(struct fid_mr *mr) {
    return fi_close(&mr->fid);
}

/* The slot of an operation; UINT32_MAX: of none of ours. */
static uint32_t slot_of(const struct farhold_channel *channel, const void *context) {
    uint64_t offset = (uint64_t)((uintptr_t)context - (uintptr_t)channel->contexts);
    uint64_t slot = offset / sizeof *channel->contexts;
    return slot < (uint64_t)channel->rx + channel->tx + channel->rma ? (uint32_t)slot : UINT32_MAX;
}

/* Makes progress and takes some completions, of which there is room for `most`; returns how many. */
int64_t farhold_poll(struct farhold_channel *channel, struct farhold_completion *completions, size_t most) {
    struct fi_cq_msg_entry entries[COMPLETIONS_MAX];
    ssize_t count = fi_cq_read(channel->cq, entries, most < COMPLETIONS_MAX ? most : COMPLETIONS_MAX);
    if (count == -FI_EAGAIN)
        return 0;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        count = fi_cq_readerr(channel->cq, &error, 0);
        if (count == -FI_EAGAIN)
            return 0;
        if (count < 0)
            return count;
        completions[0].slot = slot_of(channel, error.op_context);
        completions[0].error = error.err ? error.err : FI_EOTHER;
        completions[0].len = 0;
        return 1;
    }
    for (ssize_t i = 0; i < count; i++) {
        completions[i].slot = slot_of(channel, entries[i].op_context);
        completions[i].error = 0;
        completions[i].len = entries[i].len;
    }
    return count;
}

/* Sleeps until there may be something to poll for, `bell` (an eventfd) rings, or the time is over. */
void farhold_wait(struct farhold_channel *channel, int bell, const struct timespec *timeout) {
    struct pollfd fds[2] = {{.fd = bell, .events = POLLIN}, {.fd = channel->wait_fd, .events = POLLIN}};
    nfds_t count = 1;
    if (channel->wait_fd >= 0) {
        struct fid *queue = &channel->cq->fid;
        if (fi_trywait(channel->fabric, &queue, 1) != 0)
            return;
        count = 2;
    }
    /* Rung once, it would keep every later wait from sleeping. */
    uint64_t rings;
    if (ppoll(fds, count, timeout, NULL) > 0 && (fds[0].revents & POLLIN) && read(bell, &rings, sizeof rings) < 0)
        return; /* another thread has read it */
}

const char *farhold_reason(int error) {
    return fi_strerror(error < 0 ? -error : error);
}
