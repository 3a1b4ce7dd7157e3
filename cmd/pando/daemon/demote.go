package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/sandbox/demote"
)

// serverUser is the user of the server. It has no name, and it is below the users of instances. A
// named user could be a person's, who would then own the keys of the cluster.
const serverUser = 1_999_999_999

// serverCapabilities are what the server keeps of root's rights, within the folders of the daemons.
// It shares them with the agent: both write the blobs, the records and the locks of images, and those
// of the agent belong to root. The server also reads the files of a deploy in any folder.
//
// Its group is root's, so that the socket of the operators needs no change of its owner.
var serverCapabilities = []int{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH}

// demoteServer starts the server again without root's rights. It parses what tenants, registries and
// members send. It returns only an error.
func demoteServer(p place) error {
	for dir, mode := range map[string]os.FileMode{p.Data: 0o750, p.Run: 0o755, p.logs(): 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("make the folders of the server: %w", err)
		}
	}
	if err := handOver(filepath.Join(p.Data, "store"), serverUser); err != nil {
		return fmt.Errorf("give the store to the server's user: %w", err)
	}
	return demote.Exec(demote.Rights{
		User: serverUser, Capabilities: serverCapabilities, Folders: []string{p.Data, p.Run},
	}, "/proc/self/exe", os.Args, os.Environ(), func(err error) {
		slog.Warn("the server may write beyond its folders", "reason", err)
	})
}

// handOver gives a folder and its files to a user. A store of root, such as a restored one, becomes
// the server's. A folder that is not there is none.
func handOver(dir string, user int) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.Lchown(path, user, user)
	})
}

// oomScores are how willingly the kernel ends a daemon when memory is short. Without its agent, a
// host has no instances that change, and without the warden no daemon.
var oomScores = map[string]int{"agent": -900, wardenRole: -900, "server": -500}

// spare sets the score of a daemon. Without CAP_SYS_RESOURCE, as in a container, the kernel refuses
// a lower one, and the daemon keeps the usual one.
func spare(pid int, role string) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid),
		[]byte(strconv.Itoa(oomScores[role])), 0)
}

// takenWait is how long the server waits for the agent's answer about a port.
const takenWait = 2 * time.Second

// takenPort returns a function that asks the agent of this host which program has a port. Only root
// sees the programs of sockets. Without an answer, the port counts as free: the agent reports it
// later.
func takenPort(ctx context.Context, p place, peers *peer.Client) func(pando.HostPort) (string, bool) {
	own := pando.Host{Name: pando.HostName(p.Host), Endpoint: "unix://" + p.agent()}
	return func(port pando.HostPort) (owner string, taken bool) {
		ctx, cancel := context.WithTimeout(ctx, takenWait)
		defer cancel()
		owner, taken, err := peers.Taken(ctx, own, port)
		if err != nil {
			slog.Warn("the agent does not say who has a port", "port", port, "error", err)
		}
		return owner, taken
	}
}
