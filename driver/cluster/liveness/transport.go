package liveness

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/crypto/chacha20poly1305"

	"pando.run/pando"
)

// Bounds of the wire. A full queue drops packets, as a full socket does: the next probe repeats
// them.
const (
	packetBytesMax = 64 << 10
	packetsQueued  = 256
	streamsQueued  = 64
	handshakeWait  = time.Second
)

// transport carries the packets and streams of memberlist. A packet is sealed with the key of the
// cluster by XChaCha20-Poly1305: a random nonce of 24 bytes, then the sealed bytes. A stream is TLS
// between members. A packet or stream from an address of no watched host is dropped and counted.
type transport struct {
	Config
	knows   func(netip.Addr) bool
	seal    cipher.AEAD
	socket  *net.UDPConn
	packets chan *memberlist.Packet
	streams chan net.Conn
	forged  atomic.Uint64 // from addresses of watched hosts
	unknown strangers
	wg      sync.WaitGroup
	ctx     context.Context
	end     context.CancelFunc
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func listen(c Config, knows func(netip.Addr) bool) (*transport, error) {
	seal, err := chacha20poly1305.NewX(c.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: the key of the probes: %w", pando.ErrInvalid, err)
	}
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Listen, uint16(c.Port)))
	socket, err := net.ListenUDP("udp", at)
	if err != nil {
		return nil, fmt.Errorf("listen for probes of other hosts: %w", err)
	}
	t := &transport{
		Config: c, knows: knows, seal: seal, socket: socket,
		packets: make(chan *memberlist.Packet, packetsQueued),
		streams: make(chan net.Conn, streamsQueued),
	}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.wg.Add(2)
	go t.receive()
	go t.accept()
	return t, nil
}

func (t *transport) receive() {
	defer t.wg.Done()
	b := make([]byte, packetBytesMax)
	for t.ctx.Err() == nil {
		n, from, err := t.socket.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for a packet of this host
		}
		now := t.Clock.Now()
		if at := from.Addr().Unmap(); !t.knows(at) { // a stranger's packet costs no decryption
			t.unknown.note(at, now)
			continue
		}
		text, ok := t.open(b[:n])
		if !ok {
			t.forged.Add(1)
			continue
		}
		p := &memberlist.Packet{Buf: text, From: net.UDPAddrFromAddrPort(from), Timestamp: now}
		select {
		case t.packets <- p:
		default:
		}
	}
}

// open returns the bytes of a sealed packet.
func (t *transport) open(b []byte) ([]byte, bool) {
	if len(b) <= chacha20poly1305.NonceSizeX {
		return nil, false
	}
	nonce, sealed := b[:chacha20poly1305.NonceSizeX], b[chacha20poly1305.NonceSizeX:]
	text, err := t.seal.Open(nil, nonce, sealed, nil)
	return text, err == nil && len(text) > 0
}

func (t *transport) accept() {
	defer t.wg.Done()
	for t.ctx.Err() == nil {
		c, err := t.Listener.Accept()
		if err != nil {
			_ = pause(t.ctx, handshakeWait/10) // out of descriptors, or closed
			continue
		}
		t.wg.Add(1)
		go t.greet(c)
	}
}

// greet completes the handshake of a stream.
func (t *transport) greet(c net.Conn) {
	defer t.wg.Done()
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil || !t.knows(from.Addr().Unmap()) {
		t.unknown.note(from.Addr().Unmap(), t.Clock.Now())
		c.Close()
		return
	}
	if h, ok := c.(*tls.Conn); ok {
		ctx, cancel := context.WithTimeout(t.ctx, handshakeWait)
		defer cancel()
		if err := h.HandshakeContext(ctx); err != nil {
			c.Close() // also a host's question whether this kernel refuses connections
			return
		}
	}
	select {
	case t.streams <- c:
	case <-time.After(handshakeWait):
		c.Close()
	case <-t.ctx.Done():
		c.Close()
	}
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, to.Addr)
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, to string) (time.Time, error) {
	at, err := netip.ParseAddrPort(to)
	if err != nil {
		return time.Time{}, err
	}
	out := make([]byte, chacha20poly1305.NonceSizeX, chacha20poly1305.NonceSizeX+len(b)+
		chacha20poly1305.Overhead)
	if _, err := rand.Read(out); err != nil {
		return time.Time{}, err
	}
	out = t.seal.Seal(out, out, b, nil)
	_, err = t.socket.WriteToUDPAddrPort(out, at)
	return t.Clock.Now(), err
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(
	to memberlist.Address, most time.Duration,
) (net.Conn, error) {
	if to.Name == "" {
		return nil, fmt.Errorf("%w: a stream to the unknown host at %s", pando.ErrInvalid, to.Addr)
	}
	ctx, cancel := context.WithTimeout(t.ctx, most)
	defer cancel()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: t.Address.AsSlice()}}
	if t.ToHost == nil {
		return d.DialContext(ctx, "tcp", to.Addr)
	}
	secure := tls.Dialer{NetDialer: &d, Config: t.ToHost(pando.HostName(to.Name))}
	return secure.DialContext(ctx, "tcp", to.Addr)
}

// DialTimeout implements memberlist.Transport. Every stream has a named receiver.
func (t *transport) DialTimeout(to string, _ time.Duration) (net.Conn, error) {
	return nil, fmt.Errorf("%w: a stream to the unknown host at %s", pando.ErrInvalid, to)
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.Address.AsSlice(), t.Port, nil
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.end()
	err := t.socket.Close()
	t.Listener.Close()
	t.wg.Wait()
	return err
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
