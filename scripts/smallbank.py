"""Clients that run SmallBank through SQL and remember what was acknowledged to them, and the audit of what they leave.

Each transaction that writes also adds what it brought into the bank, or took out, to its client's row of `told`, and counts itself
there. So whatever became of commits whose answer was lost, the money in all accounts has to be what they began with plus what
`told` says, and the count shows whether everything is there that was acknowledged.
"""
import random
import threading

import psycopg

from processes import until

ACCOUNTS, EACH, HOT, HOT_PERCENT = 120, 10_000, 12, 50
MIX = {
    "send payment": 25, "amalgamate": 15, "balance": 15, "deposit checking": 15, "transact savings": 15, "write check": 15,
}


def create(url, clients):
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE account (id INT PRIMARY KEY, name TEXT NOT NULL)")
        db.execute("CREATE INDEX account_name ON account (name)")
        db.execute("CREATE TABLE savings (id INT PRIMARY KEY, balance BIGINT NOT NULL)")
        db.execute("CREATE TABLE checking (id INT PRIMARY KEY, balance BIGINT NOT NULL)")
        db.execute("CREATE TABLE told (id INT PRIMARY KEY, count BIGINT NOT NULL, brought BIGINT NOT NULL)")
        for account in range(ACCOUNTS):
            insert(db, "account", [account, name_of(account)])
            for table in ("savings", "checking"):
                insert(db, table, [account, EACH])
        for client in range(clients):
            insert(db, "told", [client, 0, 0])


def insert(db, table, row):
    """Again where the statement lost a conflict: a machine with too much to do may replace a node meanwhile."""
    for left in reversed(range(1000)):
        try:
            db.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
            return
        except psycopg.errors.SerializationFailure:
            if not left:
                raise


def name_of(account):
    return f"customer {account:06}"


# How often audits have read a table of a snapshot by its columns, and by its rows alone.
READ_BY = {"columns": 0, "rows": 0}


class NotThere(Exception):
    """A read that cannot be right: of a transaction that must not commit, then."""


class Client(threading.Thread):
    """Runs the mix by whatever node of `urls` answers, which may change meanwhile. A commit whose connection was lost is `unknown`: it
    may have happened."""

    def __init__(self, urls, number):
        super().__init__(daemon=True)
        self.urls, self.number = urls, number
        self.acknowledged, self.unknown, self.retried, self.failure, self.is_over = 0, 0, 0, None, False
        self.chance = random.Random(number)
        self.start()

    def run(self):
        try:
            while not self.is_over:
                try:
                    with psycopg.connect(self.chance.choice(self.urls), autocommit=True, connect_timeout=5) as db:
                        while not self.is_over:
                            self.transact(db)
                except psycopg.OperationalError as error:
                    # The node is gone, or has lost its cluster (08007); its rows are not.
                    assert error.sqlstate in (None, "08006", "08007", "57P01"), (error.sqlstate, error)
        except Exception as error:
            self.failure = error

    def transact(self, db):
        kind = self.chance.choices(list(MIX), MIX.values())[0]
        is_committing = False
        try:
            db.execute("BEGIN")
            brought = getattr(self, kind.replace(" ", "_"))(db)
            if brought is not None:
                told = "UPDATE told SET count = count + 1, brought = brought + %s WHERE id = %s"
                db.execute(told, [brought, self.number])
            is_committing = brought is not None
            db.execute("COMMIT")
            self.acknowledged += is_committing
        except NotThere as error:
            # What a transaction reads is certain when it commits. This one must not.
            try:
                db.execute("COMMIT")
            except psycopg.errors.SerializationFailure:
                self.retried += 1
            else:
                raise AssertionError(f"committed, and has read {error}") from error
        except psycopg.errors.SerializationFailure:
            self.retried += 1
            db.execute("ROLLBACK")
        except psycopg.OperationalError:
            self.unknown += is_committing
            raise

    # The transactions: each returns what it brought into the bank, or None where it wrote nothing.

    def send_payment(self, db):
        one, other = self.two(db)
        cents = self.chance.randrange(1, 500)
        if self.balance_of(db, "checking", one) < cents:
            return None
        self.add(db, "checking", one, -cents)
        self.add(db, "checking", other, cents)
        return 0

    def amalgamate(self, db):
        one, other = self.two(db)
        savings, checking = self.balance_of(db, "savings", one), self.balance_of(db, "checking", one)
        self.add(db, "savings", one, -savings)
        self.add(db, "checking", one, -checking)
        self.add(db, "checking", other, savings + checking)
        return 0

    def balance(self, db):
        account = self.one(db)
        self.balance_of(db, "savings", account)
        self.balance_of(db, "checking", account)

    def deposit_checking(self, db):
        self.add(db, "checking", self.one(db), 130)
        return 130

    def transact_savings(self, db):
        account, cents = self.one(db), self.chance.randrange(-2_000, 2_000)
        if self.balance_of(db, "savings", account) + cents < 0:
            return None
        self.add(db, "savings", account, cents)
        return cents

    def write_check(self, db):
        account, cents = self.one(db), self.chance.randrange(1, 500)
        # One that is not covered costs a penalty of a cent.
        is_covered = self.balance_of(db, "savings", account) + self.balance_of(db, "checking", account) >= cents
        cents += not is_covered
        self.add(db, "checking", account, -cents)
        return -cents

    def one(self, db):
        return self.found(db, self.chance.randrange(HOT if self.chance.randrange(100) < HOT_PERCENT else ACCOUNTS))

    def two(self, db):
        hot = HOT if self.chance.randrange(100) < HOT_PERCENT else ACCOUNTS
        return [self.found(db, account) for account in self.chance.sample(range(hot), 2)]

    def found(self, db, account):
        """By the secondary index, which has to be right wherever the row is now."""
        found = db.execute("SELECT id FROM account WHERE name = %s", [name_of(account)]).fetchall()
        if found != [(account,)]:
            raise NotThere(f"{found} for account {account}")
        return account

    @staticmethod
    def balance_of(db, table, account):
        found = db.execute(f"SELECT balance FROM {table} WHERE id = %s", [account]).fetchone()
        if not found:
            raise NotThere(f"no {table} of account {account}")
        return found[0]

    @staticmethod
    def add(db, table, account, cents):
        changed = db.execute(f"UPDATE {table} SET balance = balance + %s WHERE id = %s", [cents, account]).rowcount
        if changed != 1:
            raise NotThere(f"{changed} {table} to change of account {account}")

    def goes_on(self, by):
        goal = self.acknowledged + by
        until(lambda: self.acknowledged >= goal or self.failure, f"client {self.number}")
        assert not self.failure, self.failure


def audit(url, clients):
    """One state: every cent is there, and no client was told more than there is, nor is there more than it may have done."""
    before = [client.acknowledged for client in clients]
    with psycopg.connect(url, autocommit=True) as db:
        savings, checking, told = retried(lambda: audit_block(db))
        audit_snapshot(db)
    assert savings[0] == checking[0] == ACCOUNTS, (savings, checking)
    money = 2 * ACCOUNTS * EACH + sum(brought for _, brought in told.values())
    assert savings[1] + checking[1] == money, (savings, checking, told)
    for client, acknowledged in zip(clients, before):
        # One more may be on its way.
        most = client.acknowledged + client.unknown + 1
        assert acknowledged <= told[client.number][0] <= most, (client.number, acknowledged, told, most)


def audit_block(db):
    """What a block reads: accounts and money of both tables, and for each client what it has done."""
    with db.transaction():
        savings = db.execute("SELECT count(*), sum(balance) FROM savings").fetchone()
        checking = db.execute("SELECT count(*), sum(balance) FROM checking").fetchone()
        told = {client: (count, brought) for client, count, brought in db.execute("SELECT * FROM told").fetchall()}
    return savings, checking, told


def retried(ask):
    """The answer. A statement may have to be repeated while the cluster is changing."""
    while True:
        try:
            return ask()
        except psycopg.errors.SerializationFailure:
            pass


def audit_snapshot(db):
    """The same money by a query outside of a block: it reads a snapshot, by columns where they are there."""
    totals = "SELECT (SELECT sum(balance) FROM savings) + (SELECT sum(balance) FROM checking), (SELECT sum(brought) FROM told)"
    plan = "\n".join(line for line, in retried(lambda: db.execute(f"EXPLAIN {totals}").fetchall()))
    scans = [line for line in plan.splitlines() if "FarholdScan" in line]
    by_columns = sum("column_segments=" in line for line in scans)
    READ_BY["columns"] += by_columns
    READ_BY["rows"] += len(scans) - by_columns
    money, brought = retried(lambda: db.execute(totals).fetchone())
    assert money == 2 * ACCOUNTS * EACH + brought, (money, brought, plan)


def end(clients, by, limit_s):
    """Lets each client do so much more, and ends them."""
    for client in clients:
        client.goes_on(by)
        client.is_over = True
    for client in clients:
        client.join(limit_s)
        assert not client.failure, client.failure
