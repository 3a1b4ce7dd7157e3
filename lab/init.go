package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// boot starts the init of one host and returns when the host is furnished.
func boot(ctx context.Context, c Config, name string, g groups) (Host, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return Host{}, err
	}
	defer r.Close()
	room, err := g.room(c.Dir, name)
	if err != nil {
		return Host{}, fmt.Errorf("start lab host %s: %w", name, err)
	}
	// The name and the directory come first. They find the host even without the record.
	cmd := exec.Command(c.Self, "lab-init", name, c.Dir, room)
	cmd.ExtraFiles = []*os.File{w}
	var leash *os.File
	if c.Leashed {
		var far *os.File
		if far, leash, err = os.Pipe(); err != nil {
			return Host{}, err
		}
		defer far.Close()
		cmd.Args, cmd.ExtraFiles = append(cmd.Args, "leashed"), append(cmd.ExtraFiles, far)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS,
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return Host{}, fmt.Errorf("start lab host %s: %w", name, err)
	}
	go cmd.Wait() // reaps it if it dies first
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	h := Host{Name: name, Pid: cmd.Process.Pid, leash: leash}
	if said, _ := io.ReadAll(r); string(said) != "ready" {
		cmd.Process.Kill()
		return Host{}, fmt.Errorf("start lab host %s: its init answered %q", name, said)
	}
	h.Start = startOf(h.Pid)
	return h, nil
}

// startOf returns the kernel's start time of a process, or 0 if it is gone. It distinguishes the
// process from a later one with its pid.
func startOf(pid int) uint64 {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if string(fields[0]) == "Z" {
		return 0
	}
	start, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return start
}

func (h Host) alive() bool { return h.Start != 0 && startOf(h.Pid) == h.Start }

// endMsMax is how long the kernel may take to end a host with all of its processes.
const endMsMax = 10_000

// end kills a host and waits until the kernel has ended all of its processes. It opens the pidfd
// before it reads the start time, so it never hits a later process with the same pid.
func (h Host) end() error {
	fd, err := unix.PidfdOpen(h.Pid, 0)
	if err == unix.ESRCH || err == unix.EINVAL {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !h.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return err
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, endMsMax)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("still there after %d ms", endMsMax)
		default:
			return nil
		}
	}
}

// InitMain is the init of a lab host. Its arguments are the host's name, the lab's directory, the
// host's room (JSON), and perhaps "leashed". A leashed host ends with the holder of descriptor 4's
// other end. InitMain writes "ready" to descriptor 3, then reaps orphans until it is killed.
func InitMain(args []string) int {
	say := os.NewFile(3, "ready")
	if err := furnish(args[0], args[2]); err != nil {
		fmt.Fprint(say, err)
		return 1
	}
	if len(args) > 3 && args[3] == "leashed" {
		go func() {
			_, _ = os.NewFile(4, "leash").Read(make([]byte, 1))
			os.Exit(1)
		}()
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	fmt.Fprint(say, "ready")
	say.Close()
	for range children {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err == unix.EINTR {
				continue
			} else if err != nil || pid == 0 {
				break
			}
		}
	}
	return 0
}

func furnish(name, roomText string) error {
	var r room
	if err := json.Unmarshal([]byte(roomText), &r); err != nil {
		return fmt.Errorf("read the host's room: %w", err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host's name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := r.enter(); err != nil {
		return err
	}
	for _, m := range []struct {
		fs, at string
	}{{"proc", "/proc"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"}} {
		if err := unix.Mount(m.fs, m.at, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.fs, m.at, err)
		}
	}
	for key, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0",
		"ipv4/conf/default/rp_filter":  "0",
		"ipv6/conf/default/accept_dad": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set a host's network option: %w", err)
		}
	}
	return nil
}
