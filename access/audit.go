package access

import (
	"context"
	"fmt"
	"pando.run/pando"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds of the audit. Beyond them the oldest deeds of the source with the most bytes go first, so
// a flood of one source removes no deed of another.
const (
	DeedsMax      = 10_000
	DeedsBytesMax = 8 << 20 // all deeds, as stored
	DeedTextMax   = 300     // bytes of one text
)

// Deed is one line of `pando audit`: a request that changes something, or that reaches into an
// instance, with its outcome. It is written with the change, or before the answer.
type Deed struct {
	ID string    `json:"id"` // sorts by time
	At time.Time `json:"at"`
	// Source is the proven caller: "host NAME", "token TENANT/NAME" or "agent NAME".
	Source string       `json:"source"`
	By     string       `json:"by,omitempty"`     // the caller's own name, which nothing proves
	From   string       `json:"from,omitempty"`   // an address, or the user of a socket
	Tenant pando.Tenant `json:"tenant,omitempty"` // of the token
	Verb   string       `json:"verb"`             // an operation of the API
	Object string       `json:"object,omitempty"` // its kind and its name
	Owner  pando.Tenant `json:"owner,omitempty"`  // of the object; none: it belongs to the cluster
	// Revision of the spec that the request made, or 0.
	Revision int    `json:"revision,omitempty"`
	Detail   string `json:"detail,omitempty"` // the words of the decision
	Result   string `json:"result"`           // DeedDone, or the error
}

// DeedDone is the result of a request without an error.
const DeedDone = "ok"

// Key returns the key of the deed's record.
func (d Deed) Key() pando.Key { return pando.MakeKey(pando.KindAudit, d.ID) }

// About names the object of a request.
func (d *Deed) About(kind string, owner pando.Tenant, name string) {
	d.Owner, d.Object = owner, kind+" "+name
	if owner != "" && owner != pando.DefaultTenant {
		d.Object = kind + " " + string(owner) + "/" + name
	}
}

// Cut returns the deed with texts of at most DeedTextMax bytes.
func (d Deed) Cut() Deed {
	for _, text := range []*string{&d.Source, &d.By, &d.From, &d.Verb, &d.Object, &d.Detail,
		&d.Result} {
		*text = cutText(strings.ToValidUTF8(*text, "�"), DeedTextMax)
	}
	return d
}

// cutText returns the first bytes of a text, without a broken character.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	s = s[:most-len("…")]
	for s != "" {
		if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + "…"
}

// Bytes returns the approximate size of the deed's record.
func (d Deed) Bytes() int {
	return 220 + len(d.Source) + len(d.By) + len(d.From) + len(d.Tenant) + len(d.Verb) +
		len(d.Object) + len(d.Owner) + len(d.Detail) + len(d.Result)
}

// SeenBy reports whether a tenant may see the deed: it is about the tenant's objects, or one of its
// tokens asked.
func (d Deed) SeenBy(t pando.Tenant) bool { return d.Owner == t || d.Tenant == t }

// Pending is the deed of a request in progress. The first commit of the request stores it. The lock
// is held by each commit of the request that may store it.
type Pending struct {
	sync.Mutex
	Deed
	Stored bool // a commit has it
	Closed bool // the request has its outcome: later commits do not store it
}

type pendingKey struct{}

// WithDeed returns a context for a request that must be in the audit.
func WithDeed(ctx context.Context, p *Pending) context.Context {
	return context.WithValue(ctx, pendingKey{}, p)
}

// DeedOf returns the deed of a request in progress, or nil for a decision of control.
func DeedOf(ctx context.Context) *Pending {
	p, _ := ctx.Value(pendingKey{}).(*Pending)
	return p
}

// AuditTrim is the record of the deeds that are gone.
type AuditTrim struct {
	Deeds int       `json:"deeds"` // all that were removed
	Until time.Time `json:"until"` // the newest time of one of them
	At    time.Time `json:"at"`    // of the last removal
}

// AuditTrimKey is the key of the record of the deeds that are gone.
const AuditTrimKey = pando.Root + pando.Key(pando.KindTrim) + "/audit"

// Key returns the key of the record.
func (AuditTrim) Key() pando.Key { return AuditTrimKey }

// DeedQuery chooses deeds.
type DeedQuery struct {
	Since  time.Time           // from this time on; zero: of any age
	Source string              // a part of the source or of the caller's own name; "": all
	Tenant pando.Tenant        // see Deed.SeenBy; "": all
	After  pando.StoreRevision // written after this store revision
	Max    int                 // the newest so many; 0: all
	// Wait is how long an empty answer waits for a deed, at most DeedWaitMax.
	Wait time.Duration
}

// DeedWaitMax is the largest DeedQuery.Wait.
const DeedWaitMax = 8 * time.Second

// Check returns nil if the query can be answered, else the reason.
func (q DeedQuery) Check() error {
	if q.Max < 0 || q.Wait < 0 || q.Wait > DeedWaitMax {
		return fmt.Errorf("%w: %d deeds within %s: want 0 or more, and at most %s", pando.ErrInvalid, q.Max,
			q.Wait, DeedWaitMax)
	}
	return nil
}

// Wants reports whether a deed answers the query, apart from After and Max.
func (q DeedQuery) Wants(d Deed) bool {
	return !d.At.Before(q.Since) && (q.Tenant == "" || d.SeenBy(q.Tenant)) &&
		(strings.Contains(d.Source, q.Source) || strings.Contains(d.By, q.Source))
}

// Audit is an answer to a DeedQuery.
type Audit struct {
	Deeds []Deed              `json:"deeds"` // oldest first
	Trim  AuditTrim           `json:"trim"`  // of the whole audit
	Seen  pando.StoreRevision `json:"seen"`  // the next query continues after it
}

// Auditor keeps the audit of a cluster. The control room implements it.
type Auditor interface {
	// Record stores the outcome of a request, unless a commit of the request has stored it.
	Record(ctx context.Context, p *Pending) error
	// Deeds returns the deeds that a query wants.
	Deeds(ctx context.Context, q DeedQuery) (Audit, error)
}
