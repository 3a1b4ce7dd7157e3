package octavia

// Edit is one change of a document: a request with its object.
type Edit struct {
	Kind   Kind
	Number uint64 // of the object; 0: a new one, or the load balancer
	Pool   uint64 // of a member or of a new health monitor
	Body   []byte
	// More keeps the members that a batch lacks.
	More bool
}

// Create adds the object to a document and returns its number.
func (e Edit) Create(d *Document) (uint64, error) {
	r, err := Read(e.Kind, e.Body)
	if err != nil {
		return 0, err
	}
	switch e.Kind {
	case ListenerKind:
		return d.CreateListener(r)
	case PoolKind:
		return d.CreatePool(r)
	}
	p, err := d.Pool(e.Pool)
	if err != nil {
		return 0, err
	}
	if e.Kind == MonitorKind {
		return d.CreateMonitor(p, r)
	}
	return d.CreateMember(p, r)
}

// Update changes the object of a document.
func (e Edit) Update(d *Document) (uint64, error) {
	r, err := Read(e.Kind, e.Body)
	if err != nil {
		return 0, err
	}
	switch e.Kind {
	case ListenerKind:
		return e.Number, d.UpdateListener(e.Number, r)
	case PoolKind:
		return e.Number, d.UpdatePool(e.Number, r)
	case MonitorKind:
		return e.Number, d.UpdateMonitor(e.Number, r)
	case MemberKind:
		p, err := d.Pool(e.Pool)
		if err != nil {
			return 0, err
		}
		return e.Number, p.UpdateMember(e.Number, r)
	}
	return 0, d.Update(r)
}

// Replace makes a batch the members of a pool.
func (e Edit) Replace(d *Document) (uint64, error) {
	batch, err := ReadMembers(e.Body)
	if err != nil {
		return 0, err
	}
	p, err := d.Pool(e.Pool)
	if err != nil {
		return 0, err
	}
	return e.Pool, d.ReplaceMembers(p, batch, e.More)
}

// Delete removes the object from a document. A load balancer is removed with its service.
func (e Edit) Delete(d *Document) (uint64, error) {
	switch e.Kind {
	case ListenerKind:
		return 0, d.DeleteListener(e.Number)
	case PoolKind:
		return 0, d.DeletePool(e.Number)
	case MonitorKind:
		return 0, d.DeleteMonitor(e.Number)
	}
	p, err := d.Pool(e.Pool)
	if err != nil {
		return 0, err
	}
	return 0, p.DeleteMember(e.Number)
}
