"""Words that the random base's vocabulary has whole: common English, and those of problems, programs and tools."""

from __future__ import annotations

COMMON = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so up said what its about than into
them can only other time new some could these two may first then do any like my now over such our man me even most made
after also did many off before must well back through years where much your way down should because long each just
state those people too mister how little good world make very year still see own work men day get here old life both
between being under three never know same last another while us might great go come since against right came take used
himself few house use place during high without again home around small however found put part say thing general end
once school upon number every left always need something course fact though water less public think almost hand enough
far took head yet better set told nothing night why eyes find going look asked later knew point next program city give
group toward young days let room within children side social present given several order often form important large
case big become four interest power best line second along area full until began open kind door light different sense
name seemed mean help show study able done whole hear food close among real turn above across white ever sure word keep
money family problem field cannot week story body voice call class ask free question change move true early town tree
hold learn play plant near land country earth read write letter answer page mother father sister brother friend start
run walk talk stop stand sit sleep eat drink buy sell pay cost send bring carry build break cut draw drive fall feel
fight fill fly follow forget grow guess hang happen hate hit hope hurt join jump laugh lead leave lend lie listen lose
love meet miss notice offer pass pick pull push raise reach remember repeat reply rest return ride ring rise save seem
serve shake share shine shoot shout shut sing smell smile speak spend spread steal stay strike swim teach tear tell
thank throw touch travel trust try understand visit wait wake want warn wash watch wear win wish wonder worry afraid
alone angry bad beautiful bright busy cheap clean clear cold cool dark dead deep dry easy empty equal fair false fast
fat fine fresh glad hard happy heavy hot ill late lazy loud low lucky narrow nice noisy poor proud quick quiet quite
rare ready rich rough round sad safe sharp short sick silent simple slow smooth soft sorry sour special square straight
strange strong sweet tall thick thin tired warm weak wet wide wild wrong air animal apple arm art baby ball bank bath
bed bell bird blood boat bone book bottle bowl box boy branch bread bridge bus butter cake camera camp car card cat
cause chair chance church circle clock cloth cloud coat coffee color colour corner count cow cup date daughter desk
dinner doctor dog dollar dream dress ear east edge effect egg engine evening event example expect eye face farm finger
fire fish flat floor flower foot forest fruit game garden girl glass gold grass ground hair half hall hat heart hill
history holiday horse hospital hour ice idea industry island job key king kitchen knife lake language law leaf leg
lesson level library list lunch machine map market matter meal meat message method middle milk mind minute mirror
mistake moment month moon morning mountain mouth movie music neck news newspaper north nose office oil orange pain
paint paper parent park party pen pencil person phone picture piece pig plan plane plate pocket police position
possible post practice price prince queen radio rain reason record red green blue black brown yellow result river road
rock roof rule salt sand science sea seat sentence shape ship shirt shoe shop shoulder sign silver size skin sky snow
soap son song sound south space sport spring stair star endpoint step stone store storm street student sugar summer sun
surface system table tail teacher team test thousand hundred million ticket tomorrow yesterday today tongue tooth top
trade train trip trouble truth uncle unit university valley value village wall war weather west wheel wife wind window
winter woman women wood yard zero five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy
eighty ninety third fourth fifth sixth quarter double single total sum difference product quotient remainder apples
oranges bought sold gave away together altogether per speed distance hours minutes dozen percent ratio fraction decimal
digit digits odd prime factor multiple root cube exponent equation solve solution variable constant function graph
slope angle triangle rectangle radius diameter volume perimeter length width height weight mass meter metre centimetre
kilometre gram kilogram litre average median mode maximum minimum positive negative integer rational complex vector
matrix proof prove theorem assume therefore hence thus suppose consider define denote contain satisfy exist unique
compute calculate estimate evaluate simplify expand substitute multiply divide add subtract plus minus times equals
greater smaller correct incorrect final reasoning thinking thought okay hmm actually alternatively finally recall check
verify import self def print input output string dict tuple float object values keys index range loop continue except
error exception lambda yield async await none null const var static void private array boolean char struct type enum
switch default template namespace model models token tokens prompt user assistant tool tools calls response request
messages content role argument arguments parameter parameters description required properties results search query data
file files folder path directory command code tests server client network database column row schema numbers option
options setting settings version update install package module source target deploy memory processor computer software
hardware internet website email password account security policy reward agent environment action episode training
learning instruction following information examples available provide support include create remove delete insert
select format convert process generate produce government president economy economic political national international
development management business company companies education research scientific medical health community society
culture tradition individual particular necessary various certain common similar likely probably perhaps already
usually sometimes especially generally increase decrease improve reduce require allow describe explain discuss compare
contrast analysis theory evidence experiment temperature pressure energy chemical biological physical natural material
structure element compound
"""
SUFFIXES = ("s", "ed", "ing", "er", "ly")
"""What follows words; not every such word exists, as in real vocabularies."""
ENDINGS = """
ing tion ation ions ment ness able ible ally ance ence ity ous ive ful less ship ward wise ized izing ists ism ical
ating ated ates ers est ies ied ily ent ant ial ual ure age ary ory ward
"""
"""Endings of longer words."""
SIGNS = """
() (); ): {} {{ }} [] [[ ]] == != <= >= => -> ** // /* */ ++ -- += -= *= && || :: ... .. ?? !! </ /> ", ': ," ." .) ),
"""
"""Signs that often stand together."""


def words() -> list[str]:
    """The common words, the commonest first."""
    return COMMON.split()
